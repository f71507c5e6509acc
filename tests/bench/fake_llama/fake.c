/* A library that computes nothing: the choice after a token is a plain function of that token, its
 * position and its slot, and whatever a caller does wrong makes llama_decode fail.
 */
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "ggml-backend.h"
#include "llama.h"

enum { VOCABULARY = 1000, SLOTS = 4, MOST = 512 };

struct llama_model {
    int opened;
};
struct llama_context {
    struct llama_context_params params;
    int pools, lengths[SLOTS];
    float rows[MOST][VOCABULARY];
};

static struct llama_model model;
static struct llama_context context;
static ggml_log_callback said;

void llama_log_set(ggml_log_callback call, void *data) { (void)data; said = call; }
void llama_backend_init(void) {}
const char *llama_print_system_info(void) { return "CPU : AVX = 1 | AVX2 = 0 | AMX_INT8 = 1 | "; }

struct llama_model_params llama_model_default_params(void)
{
    struct llama_model_params params;
    memset(&params, 0, sizeof params);
    params.use_extra_bufts = true;
    params.n_gpu_layers = -1;
    return params;
}

struct llama_context_params llama_context_default_params(void)
{
    struct llama_context_params params;
    memset(&params, 0, sizeof params);
    return params;
}

struct llama_model *llama_model_load_from_file(const char *path, struct llama_model_params params)
{
    if (strstr(path, "crash"))
        abort();
    FILE *file = fopen(path, "rb");
    if (!file || !params.use_extra_bufts)
        return NULL;
    fclose(file);
    said(GGML_LOG_LEVEL_INFO, "load_tensors: AMX model buffer size = 1 MiB\n", NULL);
    said(GGML_LOG_LEVEL_INFO, "something else\n", NULL);
    if (params.n_gpu_layers > 0) {
        char line[80];
        said(GGML_LOG_LEVEL_INFO, "load: using device CUDA0 (a card) (0:1) - 2 MiB free\n", NULL);
        snprintf(line, sizeof line, "load: offloaded %d/9 layers to GPU\n", params.n_gpu_layers);
        said(GGML_LOG_LEVEL_INFO, line, NULL);
    }
    return &model;
}

struct llama_context *llama_init_from_model(
    struct llama_model *some, struct llama_context_params params)
{
    (void)some;
    if (params.n_seq_max > SLOTS || params.n_batch > MOST || params.n_ubatch != params.n_batch)
        return NULL;
    memset(&context, 0, sizeof context);
    context.params = params;
    return &context;
}

void llama_model_free(struct llama_model *some) { (void)some; }
void llama_free(struct llama_context *some) { (void)some; }
const struct llama_vocab *llama_model_get_vocab(const struct llama_model *some)
{
    return (const struct llama_vocab *)some;
}
int32_t llama_vocab_n_tokens(const struct llama_vocab *vocab) { (void)vocab; return VOCABULARY; }
llama_memory_t llama_get_memory(const struct llama_context *some) { return (void *)some; }
void llama_memory_clear(llama_memory_t memory, bool data)
{
    (void)data;
    memset(((struct llama_context *)memory)->lengths, 0, sizeof context.lengths);
}

struct ggml_threadpool_params ggml_threadpool_params_default(int threads)
{
    struct ggml_threadpool_params params = { threads };
    return params;
}

static ggml_threadpool_t make(struct ggml_threadpool_params *params)
{
    return params->n_threads > 0 ? (ggml_threadpool_t)&context : NULL;
}
static void unmake(ggml_threadpool_t pool) { (void)pool; }

void llama_attach_threadpool(struct llama_context *some, ggml_threadpool_t one, ggml_threadpool_t two)
{
    (void)two;
    some->pools = one != NULL;
}
ggml_backend_dev_t ggml_backend_dev_by_type(enum ggml_backend_dev_type type) { (void)type; return &model; }
ggml_backend_reg_t ggml_backend_dev_backend_reg(ggml_backend_dev_t device) { return device; }
void *ggml_backend_reg_get_proc_address(ggml_backend_reg_t reg, const char *name)
{
    (void)reg;
    if (!strcmp(name, "ggml_threadpool_new"))
        return (void *)make;
    return strcmp(name, "ggml_threadpool_free") ? NULL : (void *)unmake;
}

int32_t llama_decode(struct llama_context *some, struct llama_batch batch)
{
    if ((uint32_t)batch.n_tokens > some->params.n_batch || batch.embd || !some->pools)
        return -3;
    for (int32_t at = 0; at < batch.n_tokens; at++) {
        int32_t slot = batch.seq_id[at][0], token = batch.token[at];
        if (batch.n_seq_id[at] != 1 || slot >= (int32_t)some->params.n_seq_max)
            return -4;
        if (batch.pos[at] != some->lengths[slot]++)
            return -5;
        if ((uint32_t)some->lengths[slot] > some->params.n_ctx / some->params.n_seq_max)
            return 1;
        memset(some->rows[at], 0, sizeof some->rows[at]);
        if (batch.logits[at]) {
            int32_t first = (token + 3 * batch.pos[at] + 100 * slot) % VOCABULARY;
            some->rows[at][first / 2] = 1.5f; /* before the choice, and smaller */
            some->rows[at][first] = 2.0f;
            some->rows[at][VOCABULARY - 1] = 2.0f; /* as large, and higher: never the choice */
        }
    }
    return 0;
}

float *llama_get_logits_ith(struct llama_context *some, int32_t at)
{
    return some->rows[at];
}
