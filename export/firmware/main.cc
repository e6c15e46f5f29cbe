// Scores of images: rows x columns bytes each from the standard input, a line of scores for each.
#include <stdio.h>

#include "digits_model.h"

int main() {
  static uint8_t pixels[digits_rows * digits_columns];  // on a device, the camera's
  static float scores[digits_classes];
  if (!digits_setup()) {
    fputs("Expected a larger arena for these kernels: raise digits_arena_size in digits_model.h\n", stderr);
    return 1;
  }
  if (!digits_check()) {
    fputs("Expected the known images to have their known scores: look at the kernels and the compiler\n", stderr);
    return 1;
  }
  while (fread(pixels, 1, sizeof(pixels), stdin) == sizeof(pixels)) {
    if (!digits_classify(pixels, scores)) return 1;
    for (int k = 0; k < digits_classes; ++k) printf("%.9g%c", scores[k], k + 1 < digits_classes ? ' ' : '\n');
  }
  return 0;
}
