/* C interface of the CPU kernels: decoder forwards of whole models, one call each.
 *
 * Knows raw pointers and sizes; nothing of torch, Python or transformers. All functions return FS_OK or the
 * first error they find, and check sizes and indices before they write anything. Letters as in the Python
 * core: B rows, N nodes, M = B * N, T slots, S encoder positions, D width, V vocabulary, H heads.
 */
#ifndef FORESCRIBE_H
#define FORESCRIBE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FS_ABI 9

enum { FS_OK = 0, FS_BAD_SHAPE = 1, FS_BAD_SLOT = 2, FS_BAD_TOKEN = 3, FS_NO_MEMORY = 4, FS_BAD_ISA = 5,
       FS_INEXACT = 6 };
/* Storage. Arithmetic is float32, but for products with matrices in bfloat16 on instruction sets that multiply
 * bfloat16: there the other factors are rounded to bfloat16 and sums are float32. Products with matrices in int8
 * (of decoders, nothing else is) round the other factor to int8 too, with a scale for each row; sums are exact
 * integers, and one multiplication by both scales gives float32. */
enum { FS_FLOAT32 = 0, FS_BFLOAT16 = 1, FS_INT8 = 2,
       /* Matrices of float32 whose numbers are kept in fewer bytes: results are those of FS_FLOAT32, to the bit. */
       FS_EXACT_INT8 = 3, FS_EXACT_FLOAT16 = 4, FS_EXACT_BFLOAT16 = 5 };
enum { FS_GELU = 0, FS_RELU = 1, FS_SILU = 2 };         /* activations */

typedef struct {
    const void *weight; /* packed by fs_pack or fs_pack_int8 */
    const float *bias;  /* padded to a multiple of 16; NULL for none */
    int32_t storage;    /* the model's; of a decoder where that is FS_FLOAT32 also an exact one */
} fs_linear;

typedef struct {
    const float *scale; /* [D] */
    const float *shift; /* [D] */
} fs_norm;

typedef struct {
    fs_norm self_norm;
    fs_linear qkv;      /* [3 D, D], the scale of queries folded in */
    fs_linear self_out; /* [D, D] */
    fs_norm cross_norm;
    fs_linear cross_query; /* [D, D], scale folded in */
    fs_linear cross_out;   /* [D, D] */
    fs_norm ffn_norm;
    fs_linear up;   /* [F, D] */
    fs_linear down; /* [D, F] */
    const float *cross_key; /* [D, D] row-major, not packed */
    const float *cross_key_bias; /* [D], or NULL */
    fs_linear cross_value;  /* every head [D / H, D] packed on its own, and its bias padded; never in int8: as
                               the caches where the other matrices are */
    void *keys;             /* self-attention caches [B, H, T, D / H] */
    void *values;
    void *cross_keys;   /* per row and head: panels of 16 positions, see layout.h */
    void *cross_values; /* per row and head: panels of 16 columns */
} fs_whisper_layer;

typedef struct {
    int64_t width, heads, layers, ffn, vocab, positions, sources;
    int64_t outputs;      /* rows of the head and columns of the logits, <= vocab: a draft's may be fewer */
    int64_t batch, slots; /* of the caches */
    int32_t weight_storage, cache_storage, cross_storage, activation;
    float eps;
    fs_linear embedding;   /* [V, D], not in FS_INT8; without bias */
    const float *position; /* [positions, D] */
    fs_norm norm;
    fs_linear head; /* [outputs, D] */
    const fs_whisper_layer *layer;
} fs_whisper;

typedef struct {
    const float *input_norm; /* [D], of RMS norms, as all norms here */
    fs_linear qkv;           /* [(H + 2 K) d, D], K heads of keys */
    const float *query_norm; /* [d], of every head before the rotation; NULL: none */
    const float *key_norm;
    fs_linear out;           /* [D, H d] */
    const float *post_norm;
    fs_linear gate_up;       /* [2 F', D]: 16 outputs of the gate, 16 of the other half, and so on; F' is F
                                rounded up to a multiple of 16 */
    fs_linear down;          /* [D, F] */
    void *keys;              /* [B, K, T, d] in `cache_storage` */
    void *values;
    int64_t window;          /* positions that a query reads, itself included; 0: all */
    int32_t rotary;          /* 0: this layer knows no positions */
} fs_causal_layer;

/* A Llama-like decoder. `vocab` tokens have an embedding, `outputs` <= vocab have logits, and the rest of
 * the `columns` of each row of logits is -inf. */
typedef struct {
    int64_t width, heads, key_heads, head, layers, ffn, vocab, outputs, columns;
    int64_t positions; /* rows of the tables; later positions are clamped */
    int64_t batch, slots;
    int32_t weight_storage, cache_storage, activation; /* of caches: the weights' unless those are in int8 */
    float eps, scale;       /* scores are multiplied by `scale` */
    float embedding_scale;  /* embeddings are multiplied by it, */
    float residual_scale;   /* what a block adds to the residual by this, */
    float logits_scale;     /* and the state that the head reads by this */
    fs_linear embedding;    /* [V, D], not in FS_INT8; without bias */
    const float *cosine;    /* [positions, d / 2] */
    const float *sine;
    const float *norm;
    fs_linear projection; /* [outputs, D]: the head */
    const fs_causal_layer *layer;
} fs_causal;

typedef struct {
    fs_norm attention_norm;
    fs_linear query; /* [D, D], the scale of queries folded in */
    fs_linear key, value, out;
    fs_norm ffn_norm;
    fs_linear up, down; /* [F, D] and [D, F] */
} fs_encoder_layer;

/* Whisper's encoder. Rows of the convolutions' matrices are three frames of inputs. */
typedef struct {
    int64_t width, heads, layers, ffn, mels, sources;
    int32_t weight_storage; /* of matrices, but of layers' in int8, and of keys and values */
    int32_t activation;     /* of the layers; convolutions have gelu */
    float eps;
    fs_linear conv1;       /* [D, 3 mels] */
    fs_linear conv2;       /* [D, 3 D'], D' is D rounded up to a multiple of 16, with zeros */
    const float *position; /* [S, D] */
    fs_norm norm;
    const fs_encoder_layer *layer;
} fs_encoder;

/* One forward over tokens [B, N]; node i of row b is written to slot start[b] + i. */
typedef struct {
    int64_t batch, nodes, reach;
    int64_t path_slots;
    const int64_t *tokens;   /* [B, N] */
    const float *const *embedded; /* [B, N] of causal models: the embedding [D] in place of a token's, or NULL;
                                     NULL: there are none */
    const int64_t *start;    /* [B] */
    const int64_t *rows;     /* [B] rows of the caches; NULL: row b is b */
    const int64_t *paths;    /* [B, N, path_slots] of beams: the slots that a node reads, the last one its own;
                                NULL: a chain */
    const int64_t *lengths;  /* [B, N] of the paths; a node's position is the last one */
    const int64_t *node;     /* [B] the only node of each row with logits; NULL: all */
    float *logits;           /* [B, N, V], or [B, 1, V] with `node`; NULL: without the head */
    float *hidden;           /* [B, N, D] after the last norm */
    const int64_t *tap_layers; /* [tap_count] layers whose inputs are copied; -1: the state after the last norm */
    int64_t tap_count;
    float *taps;             /* [B, N, tap_count, D] */
    float *queries;          /* [layers, B, N, D] of cross-attention, with their scale; NULL: not kept */
    void *workspace;
    int64_t workspace_bytes;
    int32_t threads;
} fs_step;

/* Which token each of `count` positions takes: the fields of Allowed in speculative/rounds/choice.py. */
typedef struct {
    int64_t count, vocab, split, kinds;
    const float *logits; /* [count, vocab] */
    const float *bias;   /* [kinds, vocab]; NULL: all tokens are allowed */
    const int64_t *kind; /* [count], as low, high and joint; not read without `bias` */
    const int64_t *low, *high;
    const uint8_t *joint;
    int64_t *tokens; /* [count] */
    float *logprobs; /* [count] */
    int32_t threads;
} fs_choice;

/* Greedy drafts: up to `depths` tokens of each row, each one fed for the next. */
typedef struct {
    int64_t depths, columns; /* columns of the logits */
    const uint8_t *active;   /* [B] */
    const int64_t *ids;      /* [columns] the token of each column; NULL: column i is token i */
    int64_t *tokens;         /* [depths, B] */
    int64_t *start;          /* [B], undefined afterwards, as `logprobs` is */
    float *logprobs;         /* [B] */
    float *belief;           /* [B] the product of the drafts' probabilities */
    int64_t drafted;         /* depths that were written */
    float confidence;        /* drafts end where `belief` is lower in all active rows; 0: nowhere */
} fs_draft;

int32_t fs_abi(void);
const char *fs_source_hash(void);
/* The instruction sets compiled in, best first, separated by spaces; and whether this machine has one. */
const char *fs_isas(void);
int32_t fs_isa_usable(const char *isa);
/* Chooses one by name; NULL chooses the best usable one. Not while another call runs. */
int32_t fs_choose_isa(const char *isa);
const char *fs_isa(void);
int32_t fs_openmp(void); /* 1 if compiled with OpenMP */

/* Packs source [N, K] (row-major, K even) into panels of 16 outputs; bytes: fs_packed_bytes. FS_INEXACT where a
 * number does not fit into an exact storage; `packed` is undefined then. */
int64_t fs_packed_bytes(int64_t outputs, int64_t inputs, int32_t storage);
int32_t fs_pack(const float *source, int64_t outputs, int64_t inputs, int32_t storage, void *packed,
                int32_t threads);
/* Packs source [N, K] of -127 to 127; output n is scales[n] times its integers. */
int32_t fs_pack_int8(const int8_t *source, const float *scales, int64_t outputs, int64_t inputs, void *packed);

/* Bytes of cross keys (or values: the larger of the two) of one row and head. */
int64_t fs_cross_bytes(int64_t sources, int64_t head_size, int32_t storage);

int64_t fs_whisper_workspace(const fs_whisper *model, int64_t rows, int32_t threads);
int32_t fs_whisper_forward(const fs_whisper *model, const fs_step *step);
/* Cross-attention keys and values of `count` encoder states [S, D] into the rows of the caches. */
int32_t fs_whisper_cross(const fs_whisper *model, const float *const *states, const int64_t *rows,
                         int64_t count, void *workspace, int64_t workspace_bytes, int32_t threads);

/* Features [mels, 2 S] of one window to states [S, D], both float32. */
int64_t fs_encoder_workspace(const fs_encoder *model, int32_t threads);
int32_t fs_encode(const fs_encoder *model, const float *features, float *states, void *workspace,
                  int64_t workspace_bytes, int32_t threads);

/* `step->hidden` is not used, and there are no `queries`. */
int64_t fs_causal_workspace(const fs_causal *model, int64_t rows, int32_t threads);
int32_t fs_causal_forward(const fs_causal *model, const fs_step *step);

int32_t fs_choose(const fs_choice *choice);

/* When tokens are spoken, from attention after its softmax (asr/words/timing.py, to the last bit where all numbers
 * are finite). `maps` [H, count, F] of the rows from `first` on of weights [H, N, F], F > 3: each frame normalised
 * over all rows, medians of seven along a row. The first frame of each row on the cheapest path through a map
 * [N, F]. Both take a workspace for rows of a path, 0 without one, and frames. */
int64_t fs_alignment_workspace(int64_t rows, int64_t frames);
int32_t fs_sharpen(const float *weights, int64_t heads, int64_t rows, int64_t frames, int64_t first, int64_t count,
                   float *maps, void *workspace, int64_t workspace_bytes);
int32_t fs_path(const float *map, int64_t rows, int64_t frames, int64_t *starts, void *workspace,
                int64_t workspace_bytes);

/* `first` feeds what is new to the draft and has logits [B, 1, columns] of one node of each row. */
int32_t fs_whisper_draft(const fs_whisper *model, const fs_step *first, fs_draft *draft);
int32_t fs_causal_draft(const fs_causal *model, const fs_step *first, fs_draft *draft);

#ifdef __cplusplus
}
#endif
#endif
