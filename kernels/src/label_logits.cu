#include "prelude/label_logits.cuh"

PRELUDE_KERNEL(prelude_label_logits, prelude::LabelLogitsParams, 256) { prelude::label_logits(p); }
PRELUDE_KERNEL(prelude_label_merge, prelude::LabelMergeParams, 256) { prelude::label_merge(p); }
