/* data.h - where batches come from: a source holds a corpus, a loader walks it in an order that can be repeated.
 *
 *   kr_tokenizer *tok = kr_tokenizer_bytes(ctx);
 *   kr_source *source = kr_source_string(ctx, "to be, or not to be: that is", 28, tok, NULL);   // or kr_source_text
 *   kr_loader_options options;
 *   kr_loader_options_init(&options);
 *   options.batch = 2;
 *   options.length = 8;
 *   options.n_epochs = 3;
 *   kr_loader *loader = kr_loader_create(source, &options);
 *   for (kr_batch batch; kr_loader_next(tape, loader, &batch) == KR_OK; kr_tape_reset(tape)) {
 *       kr_network_out out = kr_network_forward(tape, net, batch.ids_bs, NULL);            // labels: batch.labels_bs
 *   }
 *   kr_loader_destroy(loader);
 *   kr_source_destroy(source);
 *   kr_tokenizer_destroy(tok);
 *
 * A corpus is a row of positions, each a token or a vector of numbers, in documents one after another. Files are mapped,
 * not read; other memory is bounded. Errors name file, line or byte, and rule.
 */
#ifndef KRAIT_DATA_H
#define KRAIT_DATA_H

#include <krait/tape.h>
#include <krait/text.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- sources ---- */

typedef struct kr_source kr_source;

/* What labels have where nothing is to be predicted. */
#define KR_NOT_SCORED (-100)

typedef struct kr_text_options {
    size_t size;            /* set by kr_text_options_init */
    const char *separator;  /* NULL: the text is one document; else what stands between documents, and is dropped */
    int32_t document_end;   /* -1: none; the id that is put behind each document */
    bool parse_special;     /* false: the letters of special tokens are plain text */
    size_t memory_budget;   /* KR_DATA_BUDGET; if the ids may need more than this ... */
    const char *token_path; /* ... they are written to this file first (a token file, see below), which stays */
} kr_text_options;
#define KR_DATA_BUDGET ((size_t)256 << 20)
#define kr_text_options_init(options) KR_STRUCT_INIT(TEXT_OPTIONS, kr_text_options, options)

/* What becomes of a missing value: an empty field, or NA, N/A, NaN or null in any case of letters. */
typedef enum kr_csv_missing {
    KR_CSV_MISSING_ERROR = 0,   /* an error that names line and column */
    KR_CSV_MISSING_DROP = 1,    /* the row is left out */
    KR_CSV_MISSING_FORWARD = 2, /* the last value of the column in its sequence; the mean before the first one */
    KR_CSV_MISSING_MEAN = 3     /* the column's mean */
} kr_csv_missing;

/* x becomes (x - offset) / scale; a scale of 0 becomes 1. */
typedef enum kr_csv_scaling {
    KR_CSV_SCALING_NONE = 0,
    KR_CSV_SCALING_STANDARD = 1, /* mean, standard deviation */
    KR_CSV_SCALING_MIN_MAX = 2   /* minimum, maximum - minimum */
} kr_csv_scaling;

typedef struct kr_csv_options {
    size_t size;          /* set by kr_csv_options_init */
    char delimiter;       /* ',' */
    bool has_header;      /* true: the first line has the columns' names; false: they are called "1", "2", ... */
    const char *features; /* names with commas between them; NULL: all columns that are nothing else */
    const char *targets;  /* the same; NULL: what is to be predicted are the features of the next row */
    bool is_class;        /* false; true: the one target is a class, a whole number from 0 */
    const char *sequence; /* a column whose value changes where another sequence begins; NULL: blank lines part them */
    size_t memory_budget; /* KR_DATA_BUDGET; of the index: 8 bytes a sequence and 16 for 256 rows */
    kr_csv_missing missing; /* KR_CSV_MISSING_ERROR. FORWARD and MEAN fill in features: a target that is missing, or the
                             * next row that has a missing feature where that is predicted, is not scored */
    kr_csv_scaling scaling; /* KR_CSV_SCALING_NONE; of features and targets, not of classes */
} kr_csv_options;
#define kr_csv_options_init(options) KR_STRUCT_INIT(CSV_OPTIONS, kr_csv_options, options)

typedef struct kr_idx_options {
    size_t size;                       /* set by kr_idx_options_init */
    int64_t patch_height, patch_width; /* 1, 1: what a position holds; 1 and the image's width: a row at a time */
    double mean, deviation;            /* 0, 1: a feature is (byte / 255 - mean) / deviation */
    int64_t count;                     /* 0: all images; else the first that many */
} kr_idx_options;
#define kr_idx_options_init(options) KR_STRUCT_INIT(IDX_OPTIONS, kr_idx_options, options)

/* What a source reads. Text, JSON Lines and tokens predict the next token. */
typedef enum kr_source_format {
    KR_SOURCE_FORMAT_TEXT = 0,       /* path, tokenizer, text_options: a text file */
    KR_SOURCE_FORMAT_STRING = 1,     /* text, bytes, tokenizer, text_options: a text in memory */
    KR_SOURCE_FORMAT_JSONL = 2,      /* path, field, tokenizer, text_options: JSON Lines */
    KR_SOURCE_FORMAT_TOKENS = 3,     /* path: a token file */
    KR_SOURCE_FORMAT_RAW_TOKENS = 4, /* path, id_bytes, n_ids, separator_id: bare ids */
    KR_SOURCE_FORMAT_CSV = 5,        /* path, csv: a table of numbers */
    KR_SOURCE_FORMAT_IDX = 6         /* path, labels_path, idx: images and their classes */
} kr_source_format;

/* Only the fields of the format are read. */
typedef struct kr_source_options {
    size_t size;                         /* set by kr_source_options_init */
    kr_source_format format;             /* KR_SOURCE_FORMAT_TEXT */
    const char *path;                    /* NULL */
    const char *labels_path;             /* NULL: no labels at all */
    const char *text;                    /* NULL */
    size_t bytes;                        /* 0: of the text */
    const char *field;                   /* NULL: the member of each line's object that is a document, a string */
    const kr_tokenizer *tok;             /* NULL; not needed after the call */
    const kr_text_options *text_options; /* NULL: its defaults; so are csv and idx */
    const kr_csv_options *csv;
    const kr_idx_options *idx;
    int id_bytes;         /* 2; or 4 */
    int64_t n_ids;        /* 0; every id is below it */
    int32_t separator_id; /* -1: one document; else a document begins behind each of these ids */
} kr_source_options;
#define kr_source_options_init(options) KR_STRUCT_INIT(SOURCE_OPTIONS, kr_source_options, options)

/* Opens a source; the functions below are one format each. NULL options inside are the defaults; NULL after an error. */
KR_API kr_source *kr_source_open(kr_ctx *ctx, const kr_source_options *options);

/* A text is encoded in blocks of 1 MiB, cut where the ids are those of the whole (kr_tokenizer_split). */
KR_API_INLINE kr_source *kr_source_text(kr_ctx *ctx, const char *path, const kr_tokenizer *tok,
                                        const kr_text_options *options)
{
    kr_source_options source;
    kr_source_options_init(&source);
    source.format = KR_SOURCE_FORMAT_TEXT;
    source.path = path;
    source.tok = tok;
    source.text_options = options;
    return kr_source_open(ctx, &source);
}
KR_API_INLINE kr_source *kr_source_string(kr_ctx *ctx, const char *text, size_t bytes, const kr_tokenizer *tok,
                                          const kr_text_options *options)
{
    kr_source_options source;
    kr_source_options_init(&source);
    source.format = KR_SOURCE_FORMAT_STRING;
    source.text = text;
    source.bytes = bytes;
    source.tok = tok;
    source.text_options = options;
    return kr_source_open(ctx, &source);
}

/* JSON Lines: an object on each line, whose member `field`, a string, is a document. Blank lines are passed over. */
KR_API_INLINE kr_source *kr_source_jsonl(kr_ctx *ctx, const char *path, const char *field, const kr_tokenizer *tok,
                                         const kr_text_options *options)
{
    kr_source_options source;
    kr_source_options_init(&source);
    source.format = KR_SOURCE_FORMAT_JSONL;
    source.path = path;
    source.field = field;
    source.tok = tok;
    source.text_options = options;
    return kr_source_open(ctx, &source);
}

/* A token file, all little-endian: 64 bytes
 *   "KRTOKENS", u32 version 1, u32 bytes of an id (2 or 4), u64 ids, u64 documents, u64 n_ids (every id is below it), 0s
 * then the ids, zeros up to a multiple of 8 bytes, and for each document the u64 number of its first id, ascending from 0.
 * kr_source_save writes any source of tokens so. */
KR_API_INLINE kr_source *kr_source_tokens(kr_ctx *ctx, const char *path)
{
    kr_source_options source;
    kr_source_options_init(&source);
    source.format = KR_SOURCE_FORMAT_TOKENS;
    source.path = path;
    return kr_source_open(ctx, &source);
}
KR_API KR_MUST_CHECK kr_status kr_source_save(const kr_source *source, const char *path);

/* Bare ids of 2 or 4 bytes, little-endian, all below n_ids. Behind each id `separator` a document begins (-1: one). */
KR_API_INLINE kr_source *kr_source_raw_tokens(kr_ctx *ctx, const char *path, int id_bytes, int64_t n_ids,
                                              int32_t separator)
{
    kr_source_options source;
    kr_source_options_init(&source);
    source.format = KR_SOURCE_FORMAT_RAW_TOKENS;
    source.path = path;
    source.id_bytes = id_bytes;
    source.n_ids = n_ids;
    source.separator_id = separator;
    return kr_source_open(ctx, &source);
}

/* Rows of decimal numbers; a row is a position, a sequence a document. Fields may stand in double quotes. */
KR_API_INLINE kr_source *kr_source_csv(kr_ctx *ctx, const char *path, const kr_csv_options *options)
{
    kr_source_options source;
    kr_source_options_init(&source);
    source.format = KR_SOURCE_FORMAT_CSV;
    source.path = path;
    source.csv = options;
    return kr_source_open(ctx, &source);
}

/* Images of bytes [n height width] and their classes [n], as MNIST's files. An image is a document, its patches from
 * left to right, then down; the class is scored at its last position. labels_path NULL: no labels at all. Loaded an
 * image a row with pack = false and length = 0. */
KR_API_INLINE kr_source *kr_source_idx(kr_ctx *ctx, const char *images_path, const char *labels_path,
                                       const kr_idx_options *options)
{
    kr_source_options source;
    kr_source_options_init(&source);
    source.format = KR_SOURCE_FORMAT_IDX;
    source.path = images_path;
    source.labels_path = labels_path;
    source.idx = options;
    return kr_source_open(ctx, &source);
}

/* ---- custom sources ---- */

typedef struct kr_source_info {
    int64_t count;        /* positions */
    int64_t n_ids;        /* tokens are below it; 0: numbers */
    int64_t n_features;   /* numbers at a position; 0: tokens */
    int64_t n_classes;    /* labels are below it; 0: none */
    int64_t n_targets;    /* numbers to predict at a position; 0: none */
    bool predict_next;    /* labels or targets are the position behind */
    uint64_t reserved[4]; /* 0; for later versions */
} kr_source_info;

/* Arrays that a custom source fills for consecutive positions. What the source does not have is NULL. */
typedef struct kr_positions {
    int32_t *ids;    /* n_ids > 0: one for each position, from 0 to n_ids - 1 */
    float *x;        /* n_features > 0: that many for each position */
    int32_t *labels; /* n_classes > 0: from 0 to n_classes - 1, or KR_NOT_SCORED; not with predict_next */
    float *targets;  /* n_targets > 0: that many for each position; not with predict_next. NaN: not scored */
    bool *
        is_filled; /* false for each position. Set where x was missing and made up: it is not scored as what is predicted.
                      * NULL: not needed */
} kr_positions;

/* What a loader calls, always on the thread of the context. */
typedef struct kr_source_callbacks {
    /* Fills `out` for the positions from .. from + count - 1. Another status than KR_OK ends the loader's call with that
     * error; kr_ctx_fail gives it a message. A source must return the same values each time. */
    kr_status (*read)(void *user, int64_t from, int64_t count, const kr_positions *out);
    /* The first position in [from, to) where a document begins; `to` if none does. Position 0 begins one. NULL: the source
     * is one document. */
    int64_t (*find_start)(void *user, int64_t from, int64_t to);
    void (*destroy)(void *user); /* by kr_source_destroy; NULL: nothing to free */
    void *reserved[5];           /* NULL */
} kr_source_callbacks;

/* A source whose positions come from functions of the program: generated data, a database, another file format.
 * `callbacks` and `info` are copied; `user` must live until `destroy`. `info` needs a count above 0, one of n_ids and
 * n_features, and at most one of predict_next, n_classes and n_targets. NULL after an error; `destroy` is not called
 * then. */
KR_API kr_source *kr_source_custom(kr_ctx *ctx, const kr_source_info *info, const kr_source_callbacks *callbacks,
                                   void *user);

/* After all its loaders. */
KR_API void kr_source_destroy(kr_source *source);

/* The properties of a source; all 0 for NULL. */
KR_API kr_source_info kr_source_info_of(const kr_source *source);

/* ---- loaders ---- */

typedef enum kr_data_part { KR_DATA_PART_TRAIN = 0, KR_DATA_PART_VALIDATION = 1 } kr_data_part;

/* Rows are windows of `length` positions, by default one after another through all documents. Loaders with the same
 * source, validation_fraction and split_seed (and pack) share nothing between their parts. */
typedef struct kr_loader_options {
    size_t size;                /* set by kr_loader_options_init */
    int64_t batch, length;      /* 8 rows of 256 positions; length 0 without `pack`: as long as the document is */
    uint64_t seed;              /* 0: of the order */
    bool shuffle;               /* true: another order in each epoch; false: as they stand */
    int64_t n_epochs;           /* 0: no limit */
    bool pack;                  /* true; false: a window ends with its document, and rows are padded. Then the
                                 * loader has 24 bytes in memory for each document */
    bool reset;                 /* true: batches mark where documents begin, and none predicts the next one's start */
    bool carry;                 /* false; true: each row continues where it stopped in the last batch; see below */
    bool drop_last;             /* false: the last batch of an epoch has the rows that are left */
    bool score_last;            /* false; true: only the last position of a document is scored */
    kr_data_part part;          /* KR_DATA_PART_TRAIN */
    double validation_fraction; /* 0; the end of the corpus (from the next document on, where there is one), or without
                                 * `pack` documents drawn by split_seed */
    uint64_t split_seed;        /* 0 */
} kr_loader_options;
#define kr_loader_options_init(options) KR_STRUCT_INIT(LOADER_OPTIONS, kr_loader_options, options)

/* ---- scales of tables ---- */

/* Means, offsets and scales of a table with scaling, or with missing FORWARD or MEAN. They are computed from the rows of
 * the training part, so that nothing of the validation part is known to it: the part that a loader with these options reads
 * (its part is taken as KR_DATA_PART_TRAIN); NULL: all rows. Before the first batch. Other sources have none: nothing
 * happens. */
KR_API KR_MUST_CHECK kr_status kr_source_fit(kr_source *source, const kr_loader_options *options);

/* The same numbers as a JSON file, whole or not at all; and from it, for another table with columns of the same names: data
 * for validation, a run that is resumed. After an error nothing has changed. */
KR_API KR_MUST_CHECK kr_status kr_source_save_scales(const kr_source *source, const char *path);
KR_API KR_MUST_CHECK kr_status kr_source_load_scales(kr_source *source, const char *path);

/* Column i of a table that is read: features first, then targets that are numbers. In the units of the file a value is
 * value * scale + offset, its squared error that of the scaled value times scale^2. All 0 for other sources and behind the
 * last column; offset 0 and scale 1 before the fit. */
typedef struct kr_csv_column {
    const char *name; /* of the header, or "1", "2", ...; lives as long as the source */
    bool is_target;
    int64_t n_missing; /* in the whole file */
    double mean, offset, scale;
    uint64_t reserved[4]; /* 0; for later versions */
} kr_csv_column;
KR_API kr_csv_column kr_source_column(const kr_source *source, int64_t i);

/* ---- walking ---- */

/* carry: row b reads the b-th of `batch` equal parts of the corpus, for states that are carried from batch to
 * batch. Nothing is shuffled; all rows begin anew, and are marked so in reset_bs, with each epoch. */
typedef struct kr_loader kr_loader;
KR_API kr_loader *kr_loader_create(const kr_source *source, const kr_loader_options *options);
KR_API void kr_loader_destroy(kr_loader *loader);

/* Tensors on the tape. Positions behind the end of a row are 0 and not scored. */
typedef struct kr_batch {
    kr_tensor *ids_bs;      /* i32; NULL: numbers */
    kr_tensor *x_bsf;       /* f32; NULL: tokens */
    kr_tensor *labels_bs;   /* i32, or KR_NOT_SCORED; NULL: there are none */
    kr_tensor *targets_bso; /* f32; NULL: there are none */
    kr_tensor *scored_bs;   /* i32, with targets_bso: 1 where they are scored, else 0 */
    kr_tensor *reset_bs; /* i32: 1 where a document begins, else 0; NULL: nowhere. The first position of a row is only
                             * marked with `carry`: otherwise it has nothing to forget */
    kr_tensor *mask_bs;  /* i32: 0 where a row is padded, else 1; NULL: no row is */
    int64_t n_positions; /* that are not padding */
    int64_t n_scored;
    int64_t epoch, step; /* from 0; the step is that in its epoch */
    void *reserved[4];   /* NULL; for later versions */
} kr_batch;

/* The next batch: KR_OK, KR_END after the last epoch, or an error; *batch is all zeros without one. */
KR_API KR_MUST_CHECK kr_status kr_loader_next(kr_tape *tape, kr_loader *loader, kr_batch *batch);

/* The position of a loader as numbers to store; together with source and options it determines all later batches. A
 * loader that loads
 * them gives the batches, to the bit, that the saved one would have given next; it refuses those of other data or of
 * another shape of batches. */
typedef struct kr_loader_position {
    uint64_t seed;
    int64_t epoch, step;
    int64_t count, steps_per_epoch; /* positions of the loader's part, to tell other data */
    uint64_t reserved[4];           /* 0; for later versions */
} kr_loader_position;
KR_API kr_loader_position kr_loader_snapshot(const kr_loader *loader);
KR_API KR_MUST_CHECK kr_status kr_loader_restore(kr_loader *loader, const kr_loader_position *position);

/* Of the batch that comes next, from kr_loader_snapshot; 0 for NULL. */
KR_API_INLINE int64_t kr_loader_epoch(const kr_loader *loader)
{
    return kr_loader_snapshot(loader).epoch;
}
KR_API_INLINE int64_t kr_loader_step(const kr_loader *loader)
{
    return kr_loader_snapshot(loader).step;
}
KR_API_INLINE int64_t kr_loader_steps_per_epoch(const kr_loader *loader)
{
    return kr_loader_snapshot(loader).steps_per_epoch;
}

#ifdef __cplusplus
}
#endif
#endif
