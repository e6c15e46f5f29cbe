// A resolver that knows the operators added to it and no other; their kernels are those of the tflite-micro wheel,
// which exports a resolver of all operators.
#ifndef MICRO_MUTABLE_OP_RESOLVER_H_
#define MICRO_MUTABLE_OP_RESOLVER_H_

#include "tensorflow/lite/micro/micro_interpreter.h"

namespace tflite {

class PythonOpsResolver {
 public:
  PythonOpsResolver();

 private:
  alignas(16) char storage_[65536];
};

}  // namespace tflite

OPEN_MICRO

template <unsigned int capacity>
class MicroMutableOpResolver : public MicroOpResolver {
 public:
  TfLiteStatus AddAdd() { return Add(0); }
  TfLiteStatus AddAveragePool2D() { return Add(1); }
  TfLiteStatus AddConv2D() { return Add(3); }
  TfLiteStatus AddDepthwiseConv2D() { return Add(4); }
  TfLiteStatus AddDequantize() { return Add(6); }
  TfLiteStatus AddFullyConnected() { return Add(9); }
  TfLiteStatus AddLogistic() { return Add(14); }
  TfLiteStatus AddMaxPool2D() { return Add(17); }
  TfLiteStatus AddMul() { return Add(18); }
  TfLiteStatus AddRelu() { return Add(19); }
  TfLiteStatus AddReshape() { return Add(22); }
  TfLiteStatus AddSoftmax() { return Add(25); }
  TfLiteStatus AddTanh() { return Add(28); }
  TfLiteStatus AddTranspose() { return Add(39); }
  TfLiteStatus AddSum() { return Add(74); }
  TfLiteStatus AddQuantize() { return Add(114); }

  const void* FindOp(BuiltinOperator op) const override { return Has(op) ? All().FindOp(op) : nullptr; }
  const void* FindOp(const char*) const override { return nullptr; }
  void* GetOpDataParser(BuiltinOperator op) const override { return Has(op) ? All().GetOpDataParser(op) : nullptr; }

 private:
  TfLiteStatus Add(int32_t code) {
    if (size_ == capacity || Has(static_cast<BuiltinOperator>(code))) return kTfLiteError;
    codes_[size_++] = code;
    return kTfLiteOk;
  }

  bool Has(BuiltinOperator op) const {
    for (unsigned int i = 0; i < size_; ++i) {
      if (codes_[i] == op) return true;
    }
    return false;
  }

  static const MicroOpResolver& All() {
    static const PythonOpsResolver all;
    return reinterpret_cast<const MicroOpResolver&>(all);
  }

  int32_t codes_[capacity];
  unsigned int size_ = 0;
};

CLOSE_MICRO

#endif  // MICRO_MUTABLE_OP_RESOLVER_H_
