#include "prelude/rows.cuh"

PRELUDE_KERNEL(prelude_embed, prelude::EmbedParams, 256) { prelude::embed(p); }
PRELUDE_KERNEL(prelude_gather_rows, prelude::GatherRowsParams, 256) { prelude::gather_rows(p); }
PRELUDE_KERNEL(prelude_embed_sum, prelude::EmbedSumParams, 256) { prelude::embed_sum(p); }
