/* llama.cpp as a side uses it, behind plain integers: compiled against a build's own llama.h, so
 * that its structures are that build's and nobody else's. Only fields are set that have long been
 * there; everything else keeps the build's defaults (mapped file, extra buffer types, f16 cache,
 * flash attention chosen by llama.cpp, as many layers on cards as it chooses).
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "ggml-backend.h"
#include "ggml.h"
#include "llama.h"

#if defined(_WIN32)
#define OFFERED __declspec(dllexport)
#else
#define OFFERED __attribute__((visibility("default")))
#endif

enum { MOST = 4096, LANES = 64, NOTES = 1 << 15, LARGEST = 4096, THEIR_CHOICE = INT32_MIN };

typedef ggml_threadpool_t (*new_pool)(struct ggml_threadpool_params *);
typedef void (*free_pool)(ggml_threadpool_t);

static struct llama_model *model;
static struct llama_context *context;
static ggml_threadpool_t pool;
static char notes[NOTES];
static int32_t batch, layers;

static int told(const char *text)
{
    static const char *kept[] = {"buffer size", "lash", "using device", "offloaded"};
    for (size_t at = 0; at < sizeof kept / sizeof *kept; at++)
        if (strstr(text, kept[at]))
            return 1;
    return 0;
}

/* Keeps the lines that say where weights and cache lie, which attention runs, and on what. */
static void note(enum ggml_log_level level, const char *text, void *data)
{
    (void)level;
    (void)data;
    fputs(text, stderr);
    if (told(text) && strlen(notes) + strlen(text) < NOTES)
        strcat(notes, text);
}

static void *registered(const char *name)
{
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    return ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu), name);
}

/* Bytes of the two parameter structures: as the header has them, and as the library writes them.
 * The second are found by filling: on x86-64 (System V) the hidden result pointer is the first
 * argument. Elsewhere they are given as 0.
 */
#if defined(__x86_64__) && !defined(_WIN32)
static int64_t written(void (*defaults)(void *))
{
    static unsigned char low[LARGEST], high[LARGEST];
    memset(low, 0x00, LARGEST);
    memset(high, 0xff, LARGEST);
    defaults(low);
    defaults(high);
    int64_t last = LARGEST;
    while (last && low[last - 1] == 0x00 && high[last - 1] == 0xff)
        last--;
    return last;
}
#else
#define written(defaults) 0
#endif

OFFERED void peer_sizes(int64_t sizes[4])
{
    sizes[0] = sizeof(struct llama_model_params);
    sizes[1] = sizeof(struct llama_context_params);
    sizes[2] = written((void (*)(void *))llama_model_default_params);
    sizes[3] = written((void (*)(void *))llama_context_default_params);
}

OFFERED const char *peer_system(void)
{
    return llama_print_system_info();
}

OFFERED const char *peer_notes(void)
{
    return notes;
}

/* n_gpu_layers of the model that is open. */
OFFERED int32_t peer_layers(void)
{
    return layers;
}

OFFERED void peer_close(void)
{
    if (context)
        llama_free(context);
    if (model)
        llama_model_free(model);
    if (pool)
        ((free_pool)registered("ggml_threadpool_free"))(pool);
    context = NULL;
    model = NULL;
    pool = NULL;
    notes[0] = 0;
}

/* One pool for all steps, as llama-bench and llama-cli have it: without one a build that has no
 * OpenMP starts and ends its threads in every step.
 */
static int attach_pool(int32_t threads)
{
    new_pool make = (new_pool)registered("ggml_threadpool_new");
    struct ggml_threadpool_params wanted = ggml_threadpool_params_default(threads);
    if (!make || !(pool = make(&wanted)))
        return 0;
    llama_attach_threadpool(context, pool, NULL);
    return 1;
}

/* The vocabulary's size; 0: no such model, -1: no context, -2: no threads. `together` is n_batch
 * and n_ubatch, `on_cards` n_gpu_layers.
 */
OFFERED int32_t peer_open(
    const char *path, int32_t threads, int32_t positions, int32_t slots, int32_t together,
    int32_t on_cards)
{
    if (together < 1 || together > MOST)
        return -1;
    batch = together;
    llama_log_set(note, NULL);
    llama_backend_init();
    peer_close();
    struct llama_model_params loading = llama_model_default_params();
    if (on_cards != THEIR_CHOICE)
        loading.n_gpu_layers = on_cards;
    layers = loading.n_gpu_layers;
    model = llama_model_load_from_file(path, loading);
    if (!model)
        return 0;
    struct llama_context_params wanted = llama_context_default_params();
    wanted.n_ctx = (uint32_t)positions * (uint32_t)slots;
    wanted.n_batch = (uint32_t)batch;
    wanted.n_ubatch = (uint32_t)batch;
    wanted.n_seq_max = (uint32_t)slots;
    wanted.n_threads = threads;
    wanted.n_threads_batch = threads;
    wanted.no_perf = true;
    context = llama_init_from_model(model, wanted);
    if (!context)
        return -1;
    if (!attach_pool(threads))
        return -2;
    return llama_vocab_n_tokens(llama_model_get_vocab(model));
}

OFFERED void peer_clear(void)
{
    llama_memory_clear(llama_get_memory(context), true);
}

/* At most a batch of tokens, each with its position, its slot and whether its logits are wanted. */
OFFERED int32_t peer_step(
    int32_t count, int32_t *tokens, int32_t *positions, int32_t *slots, int8_t *wanted)
{
    int32_t ones[MOST];
    int32_t *each[MOST];
    if (count < 1 || count > batch)
        return -100;
    for (int32_t at = 0; at < count; at++) {
        ones[at] = 1;
        each[at] = slots + at;
    }
    struct llama_batch step = {
        .n_tokens = count,
        .token = tokens,
        .pos = positions,
        .n_seq_id = ones,
        .seq_id = each,
        .logits = wanted,
    };
    return llama_decode(context, step);
}

/* The row of logits of a token of the last step that wanted them; waits until it is there. */
OFFERED const float *peer_logits(int32_t token)
{
    return llama_get_logits_ith(context, token);
}

/* The first of the largest logits and how far the second lies below it. Many maxima side by side,
 * which a compiler turns into vectors: choosing must not cost llama.cpp what it does not cost us.
 */
static int32_t choose(const float *row, int32_t width, float *margin)
{
    float most[LANES];
    int32_t whole = width - width % LANES, first = 0;
    for (int32_t lane = 0; lane < LANES; lane++)
        most[lane] = -INFINITY;
    for (int32_t at = 0; at < whole; at += LANES)
        for (int32_t lane = 0; lane < LANES; lane++)
            most[lane] = row[at + lane] > most[lane] ? row[at + lane] : most[lane];
    for (int32_t at = whole; at < width; at++)
        most[0] = row[at] > most[0] ? row[at] : most[0];
    for (int32_t lane = 1; lane < LANES; lane++)
        most[0] = most[lane] > most[0] ? most[lane] : most[0];
    while (first < width && row[first] != most[0])
        first++;
    if (margin) {
        float second = -INFINITY;
        for (int32_t at = 0; at < width; at++)
            if (at != first && row[at] > second)
                second = row[at];
        *margin = most[0] - second;
    }
    return first;
}

/* `steps` times one token into every slot, from position starts[slot] on: tokens, ids and, unless
 * it is NULL, margins are [steps][slots]. Returns 0, or the status of the first step that failed.
 */
OFFERED int32_t peer_decode(
    int32_t steps, int32_t slots, int32_t *tokens, const int32_t *starts, int32_t *ids,
    float *margins)
{
    int32_t width = llama_vocab_n_tokens(llama_model_get_vocab(model));
    int32_t positions[MOST], every[MOST];
    int8_t wanted[MOST];
    if (slots < 1 || slots > batch)
        return -100;
    for (int32_t step = 0; step < steps; step++) {
        for (int32_t slot = 0; slot < slots; slot++) {
            positions[slot] = starts[slot] + step;
            every[slot] = slot;
            wanted[slot] = 1;
        }
        int32_t status = peer_step(slots, tokens + step * slots, positions, every, wanted);
        if (status)
            return status;
        for (int32_t slot = 0; slot < slots; slot++) {
            int32_t at = step * slots + slot;
            ids[at] = choose(llama_get_logits_ith(context, slot), width, margins ? margins + at : 0);
        }
    }
    return 0;
}
