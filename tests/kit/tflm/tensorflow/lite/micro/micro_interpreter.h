// What classify.cc uses of TensorFlow Lite Micro, declared as the tflite-micro wheel exports it: the wheel has the
// compiled interpreter, but no headers. The classes are larger here than there, which a constructor does not mind.
// -DFLAT_NAMESPACE declares the classes where older releases had them; nothing exports those, so they only compile.
#ifndef MICRO_INTERPRETER_H_
#define MICRO_INTERPRETER_H_

#include <stddef.h>
#include <stdint.h>

#ifdef FLAT_NAMESPACE
#define OPEN_MICRO namespace tflite {
#define CLOSE_MICRO }
#else
#define OPEN_MICRO namespace tflite { namespace micro {
#define CLOSE_MICRO } }
#endif

namespace tflite {

struct Model;
enum BuiltinOperator : int32_t {};

}  // namespace tflite

OPEN_MICRO

enum TfLiteStatus { kTfLiteOk = 0, kTfLiteError = 1 };

struct TfLiteTensor {
  struct { int type; void* params; } quantization;
  struct { float scale; int32_t zero_point; } params;
  union { float* f; int8_t* int8; uint8_t* uint8; int16_t* i16; } data;
  void* dims;
  size_t bytes;
};

class MicroOpResolver {
 public:
  virtual const void* FindOp(BuiltinOperator op) const = 0;
  virtual const void* FindOp(const char* op) const = 0;
  virtual void* GetOpDataParser(BuiltinOperator op) const = 0;
  virtual ~MicroOpResolver() {}
};

class MicroResourceVariables;
class MicroProfilerInterface;

class MicroInterpreter {
 public:
  MicroInterpreter(const Model* model, const MicroOpResolver& resolver, uint8_t* arena, size_t arena_size,
                   MicroResourceVariables* variables = nullptr, MicroProfilerInterface* profiler = nullptr,
                   bool preserve_all_tensors = false);
  ~MicroInterpreter();
  TfLiteStatus AllocateTensors();
  TfLiteStatus Invoke();
  TfLiteTensor* input(size_t index);
  TfLiteTensor* output(size_t index);

 private:
  alignas(16) char storage_[4096];
};

CLOSE_MICRO

#endif  // MICRO_INTERPRETER_H_
