// The root of a flatbuffer: its first number is the way to it.
#ifndef SCHEMA_GENERATED_H_
#define SCHEMA_GENERATED_H_

#include <stdint.h>
#include <string.h>

namespace tflite {

struct Model;

inline const Model* GetModel(const void* file) {
  uint32_t offset;
  memcpy(&offset, file, sizeof(offset));
  return reinterpret_cast<const Model*>(static_cast<const unsigned char*>(file) + offset);
}

}  // namespace tflite

#endif  // SCHEMA_GENERATED_H_
