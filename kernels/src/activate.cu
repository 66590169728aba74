#include "prelude/activate.cuh"

PRELUDE_KERNEL(prelude_activate_gelu_erf, prelude::ActivateParams, 256) {
    prelude::activate<prelude::gelu_erf>(p);
}
PRELUDE_KERNEL(prelude_activate_gelu, prelude::ActivateParams, 256) {
    prelude::activate<prelude::gelu>(p);
}
PRELUDE_KERNEL(prelude_activate_relu, prelude::ActivateParams, 256) {
    prelude::activate<prelude::relu>(p);
}
PRELUDE_KERNEL(prelude_activate_tanh, prelude::ActivateParams, 256) {
    prelude::activate<prelude::tanh_of>(p);
}
PRELUDE_KERNEL(prelude_gelu_erf_mul, prelude::SiluMulParams, 256) {
    prelude::gate_mul<prelude::gelu_erf>(p);
}
PRELUDE_KERNEL(prelude_relu_mul, prelude::SiluMulParams, 256) {
    prelude::gate_mul<prelude::relu>(p);
}
