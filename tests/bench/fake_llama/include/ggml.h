/* As much of ggml's interface as the shim uses, for a library that computes nothing. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ggml_log_level { GGML_LOG_LEVEL_INFO };
enum ggml_type { GGML_TYPE_F16 = 1 };
typedef void (*ggml_log_callback)(enum ggml_log_level, const char *, void *);
struct ggml_threadpool_params {
    int n_threads;
};
typedef struct ggml_threadpool *ggml_threadpool_t;
struct ggml_threadpool_params ggml_threadpool_params_default(int threads);
