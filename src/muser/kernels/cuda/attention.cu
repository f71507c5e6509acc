// The unit of caches and attention.
#include "muser.cuh"
#include "kv.cuh"
#include "source.cuh"
#include "attention_decode.cuh"
#include "attention_few.cuh"
#include "attention_deep.cuh"
#include "attention_prefill.cuh"
