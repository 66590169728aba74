#include "prelude/dots.cuh"

PRELUDE_KERNEL(prelude_classify, prelude::ClassifyParams, 256) { prelude::classify(p); }
PRELUDE_KERNEL(prelude_label_dots, prelude::LabelDotsParams, 256) { prelude::label_dots(p); }
