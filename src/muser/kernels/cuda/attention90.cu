// The unit of attention on warpgroups (sm_90a).
#include "muser.cuh"
#include "attention_wide.cuh"
