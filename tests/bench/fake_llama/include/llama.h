/* Structures of a build of its own: FIELDS more integers than the header says is another build. */
#pragma once
#include "ggml.h"
#ifndef FIELDS
#define FIELDS 8
#endif

struct llama_model;
struct llama_context;
struct llama_vocab;
typedef void *llama_memory_t;
typedef int32_t llama_token, llama_pos, llama_seq_id;
struct llama_model_params {
    int32_t n_gpu_layers;
    int32_t fields[FIELDS];
    bool use_extra_bufts;
};
struct llama_context_params {
    uint32_t n_ctx, n_batch, n_ubatch, n_seq_max;
    int32_t n_threads, n_threads_batch;
    int32_t fields[FIELDS];
    bool no_perf;
};
struct llama_batch {
    int32_t n_tokens;
    llama_token *token;
    float *embd;
    llama_pos *pos;
    int32_t *n_seq_id;
    llama_seq_id **seq_id;
    int8_t *logits;
};
void llama_log_set(ggml_log_callback call, void *data);
void llama_backend_init(void);
const char *llama_print_system_info(void);
struct llama_model_params llama_model_default_params(void);
struct llama_context_params llama_context_default_params(void);
struct llama_model *llama_model_load_from_file(const char *path, struct llama_model_params params);
struct llama_context *llama_init_from_model(struct llama_model *, struct llama_context_params);
void llama_model_free(struct llama_model *model);
void llama_free(struct llama_context *context);
void llama_attach_threadpool(struct llama_context *, ggml_threadpool_t, ggml_threadpool_t);
const struct llama_vocab *llama_model_get_vocab(const struct llama_model *model);
int32_t llama_vocab_n_tokens(const struct llama_vocab *vocab);
llama_memory_t llama_get_memory(const struct llama_context *context);
void llama_memory_clear(llama_memory_t memory, bool data);
int32_t llama_decode(struct llama_context *context, struct llama_batch batch);
float *llama_get_logits_ith(struct llama_context *context, int32_t at);
