/* data.h - training data: a source holds a corpus, a loader reads batches from it in a reproducible order.
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
 * A corpus is a sequence of positions, each a token or a vector of numbers, divided into documents. Files are
 * memory-mapped; other memory is bounded. Errors name file, line or byte, and rule. */
#ifndef KRAIT_DATA_H
#define KRAIT_DATA_H

#include <krait/tape.h>
#include <krait/text.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- sources ---- */

typedef struct kr_source kr_source;

/* The label of positions that are not scored. */
#define KR_NOT_SCORED (-100)

typedef struct kr_text_options {
    size_t size; /* set by kr_text_options_init */
    /* NULL: the text is one document; otherwise the string between documents, which is dropped. */
    const char *separator;
    int32_t document_end;   /* -1: none; id appended to each document */
    bool parse_special;     /* false: special tokens in the text are plain text */
    size_t memory_budget;   /* KR_DATA_BUDGET; if the ids may need more memory ... */
    const char *token_path; /* ... they are first written to this token file (see below), which is kept */
} kr_text_options;
#define KR_DATA_BUDGET ((size_t)256 << 20)
#define kr_text_options_init(options) KR_STRUCT_INIT(TEXT_OPTIONS, kr_text_options, options)

/* Handling of missing values: empty fields, and NA, N/A, NaN or null in any letter case. */
typedef enum kr_csv_missing {
    KR_CSV_MISSING_ERROR = 0,   /* an error that names line and column */
    KR_CSV_MISSING_DROP = 1,    /* skip the row */
    KR_CSV_MISSING_FORWARD = 2, /* the previous value of the column in the sequence; before the first, the mean */
    KR_CSV_MISSING_MEAN = 3     /* the mean of the column */
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
    bool has_header;      /* true: the first line has the column names; false: the names are "1", "2", ... */
    const char *features; /* comma-separated names; NULL: all other columns */
    const char *targets;  /* comma-separated names; NULL: predict the next row's features */
    bool is_class;        /* false; true: the only target is a class, an integer from 0 */
    /* A column whose value changes where a sequence starts; NULL: blank lines separate sequences. */
    const char *sequence;
    size_t memory_budget; /* KR_DATA_BUDGET; for the index: 8 bytes per sequence and 16 per 256 rows */
    /* KR_CSV_MISSING_ERROR. FORWARD and MEAN impute features. Missing targets are not scored; nor is, when the next row
     * is predicted, a row with an imputed feature. */
    kr_csv_missing missing;
    kr_csv_scaling scaling; /* KR_CSV_SCALING_NONE; for features and targets, not for classes */
} kr_csv_options;
#define kr_csv_options_init(options) KR_STRUCT_INIT(CSV_OPTIONS, kr_csv_options, options)

typedef struct kr_idx_options {
    size_t size;                       /* set by kr_idx_options_init */
    int64_t patch_height, patch_width; /* 1, 1: patch of one position; 1 and the image's width: one row */
    double mean, deviation;            /* 0, 1: a feature is (byte / 255 - mean) / deviation */
    int64_t count;                     /* 0: all images; otherwise the first `count` */
} kr_idx_options;
#define kr_idx_options_init(options) KR_STRUCT_INIT(IDX_OPTIONS, kr_idx_options, options)

/* Input formats. Text, JSON Lines and tokens predict the next token. */
typedef enum kr_source_format {
    KR_SOURCE_FORMAT_TEXT = 0,       /* path, tokenizer, text_options: a text file */
    KR_SOURCE_FORMAT_STRING = 1,     /* text, bytes, tokenizer, text_options: a text in memory */
    KR_SOURCE_FORMAT_JSONL = 2,      /* path, field, tokenizer, text_options: JSON Lines */
    KR_SOURCE_FORMAT_TOKENS = 3,     /* path: a token file */
    KR_SOURCE_FORMAT_RAW_TOKENS = 4, /* path, id_bytes, n_ids, separator_id: bare ids */
    KR_SOURCE_FORMAT_CSV = 5,        /* path, csv: a table of numbers */
    KR_SOURCE_FORMAT_IDX = 6         /* path, labels_path, idx: images and their classes */
} kr_source_format;

/* Only the fields listed for the format are read. */
typedef struct kr_source_options {
    size_t size;                         /* set by kr_source_options_init */
    kr_source_format format;             /* KR_SOURCE_FORMAT_TEXT */
    const char *path;                    /* NULL */
    const char *labels_path;             /* NULL: no labels */
    const char *text;                    /* NULL */
    size_t bytes;                        /* 0: length of text */
    const char *field;                   /* NULL: member of each JSON object that holds the document, a string */
    const kr_tokenizer *tok;             /* NULL; not needed after the call */
    const kr_text_options *text_options; /* NULL: all defaults; so are csv and idx */
    const kr_csv_options *csv;
    const kr_idx_options *idx;
    int id_bytes;         /* 2; or 4 */
    int64_t n_ids;        /* 0; ids must be below it */
    int32_t separator_id; /* -1: one document; otherwise a document starts after each of these ids */
} kr_source_options;
#define kr_source_options_init(options) KR_STRUCT_INIT(SOURCE_OPTIONS, kr_source_options, options)

/* Opens a source. The functions below open one format each. NULL options inside are the defaults. NULL after an
 * error. */
KR_API kr_source *kr_source_open(kr_ctx *ctx, const kr_source_options *options);

/* Text is encoded in blocks of 1 MiB, split where the ids are those of the whole text (kr_tokenizer_split). */
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

/* JSON Lines: one object per line, whose member `field`, a string, is a document. Blank lines are skipped. */
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

/* A token file is little-endian. It starts with a header of 64 bytes:
 *   "KRTOKENS", u32 version 1, u32 bytes per id (2 or 4), u64 ids, u64 documents, u64 n_ids (ids are below it), zeros
 * The ids follow, then zeros up to a multiple of 8 bytes, then for each document the u64 index of its first id,
 * ascending from 0. kr_source_save writes any source of tokens in this format. */
KR_API_INLINE kr_source *kr_source_tokens(kr_ctx *ctx, const char *path)
{
    kr_source_options source;
    kr_source_options_init(&source);
    source.format = KR_SOURCE_FORMAT_TOKENS;
    source.path = path;
    return kr_source_open(ctx, &source);
}
KR_API KR_MUST_CHECK kr_status kr_source_save(const kr_source *source, const char *path);

/* Raw ids of 2 or 4 bytes, little-endian, all below n_ids. A document starts after each id `separator` (-1: one
 * document). */
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

/* Rows of decimal numbers. A row is a position, a sequence is a document. Fields may be in double quotes. */
KR_API_INLINE kr_source *kr_source_csv(kr_ctx *ctx, const char *path, const kr_csv_options *options)
{
    kr_source_options source;
    kr_source_options_init(&source);
    source.format = KR_SOURCE_FORMAT_CSV;
    source.path = path;
    source.csv = options;
    return kr_source_open(ctx, &source);
}

/* Images of bytes [n height width] and their classes [n], as in the MNIST files. An image is a document of patches,
 * from left to right, then from top to bottom; the class is scored at the last position. labels_path NULL: no labels.
 * For one image per row use a loader with pack = false and length = 0. */
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
    int64_t n_ids;        /* ids are below it; 0: features */
    int64_t n_features;   /* features per position; 0: ids */
    int64_t n_classes;    /* classes; labels are below it; 0: no labels */
    int64_t n_targets;    /* target values per position; 0: none */
    bool predict_next;    /* labels or targets are the next position */
    uint64_t reserved[4]; /* 0; for later versions */
} kr_source_info;

/* Arrays that a custom source fills for consecutive positions. Arrays that the source does not provide are NULL. */
typedef struct kr_positions {
    int32_t *ids;    /* n_ids > 0: one id per position, from 0 to n_ids - 1 */
    float *x;        /* n_features > 0: n_features values per position */
    int32_t *labels; /* n_classes > 0: from 0 to n_classes - 1, or KR_NOT_SCORED; not with predict_next */
    float *targets;  /* n_targets > 0: n_targets values per position, NaN: not scored; not with predict_next */
    /* Initially false. Set to true where x was imputed; imputed values are not scored as targets. NULL: not needed. */
    bool *is_filled;
} kr_positions;

/* Callbacks of a custom source, always called on the thread of the context. */
typedef struct kr_source_callbacks {
    /* Fills `out` for positions from .. from + count - 1. Any status other than KR_OK ends the call of the loader with
     * that error; kr_ctx_fail sets its message. The values must be the same each time. */
    kr_status (*read)(void *user, int64_t from, int64_t count, const kr_positions *out);
    /* Returns the first position in [from, to) at which a document starts, or `to`. Position 0 starts one. NULL: the
     * source is one document. */
    int64_t (*find_start)(void *user, int64_t from, int64_t to);
    void (*destroy)(void *user); /* called by kr_source_destroy; may be NULL */
    void *reserved[5];           /* NULL */
} kr_source_callbacks;

/* Creates a source from functions of the program: generated data, a database, another file format. `info` needs a count
 * above 0, one of n_ids and n_features, and at most one of predict_next, n_classes and n_targets. NULL after an error;
 * `destroy` is not called then.
 *
 * Ownership: the caller owns the result and releases it with kr_source_destroy before the context. `callbacks` and
 * `info` are copied. The source keeps `user`, which must be valid until `destroy` is called. */
KR_API kr_source *kr_source_custom(kr_ctx *ctx, const kr_source_info *info, const kr_source_callbacks *callbacks,
                                   void *user);

/* Destroy a source after all its loaders. */
KR_API void kr_source_destroy(kr_source *source);

/* The properties of a source; all 0 for NULL. */
KR_API kr_source_info kr_source_info_of(const kr_source *source);

/* ---- loaders ---- */

typedef enum kr_data_part { KR_DATA_PART_TRAIN = 0, KR_DATA_PART_VALIDATION = 1 } kr_data_part;

/* Rows are windows of `length` positions, by default consecutive through all documents. The training and validation
 * parts of loaders with the same source, validation_fraction, split_seed and `pack` are disjoint. */
typedef struct kr_loader_options {
    size_t size;           /* set by kr_loader_options_init */
    int64_t batch, length; /* 8 rows of 256 positions; length 0, without `pack`: the length of the document */
    uint64_t seed;         /* 0: for the order */
    bool shuffle;          /* true: another order in each epoch; false: in file order */
    int64_t n_epochs;      /* 0: unlimited */
    /* true; false: a window ends with its document and rows are padded. Then the loader needs 24 bytes per document. */
    bool pack;
    /* true: batches mark the starts of documents, and the last token of a document does not predict the next
     * document. */
    bool reset;
    bool carry;        /* false; true: rows continue from the previous batch; see below */
    bool drop_last;    /* false: the last batch of an epoch may have fewer rows */
    bool score_last;   /* false; true: score only the last position of each document */
    kr_data_part part; /* KR_DATA_PART_TRAIN */
    /* 0; the end of the corpus (from the next start of a document, if there is one), or without `pack` a random set of
     * documents chosen by split_seed. */
    double validation_fraction;
    uint64_t split_seed; /* 0 */
} kr_loader_options;
#define kr_loader_options_init(options) KR_STRUCT_INIT(LOADER_OPTIONS, kr_loader_options, options)

/* ---- scaling of tables ---- */

/* Computes means, offsets and scales of a table with scaling, or with missing FORWARD or MEAN. Call it before the first
 * batch. Only rows of the training part are used, so that no information leaks from the validation part: the rows of a
 * loader with these options and KR_DATA_PART_TRAIN; NULL: all rows. Does nothing for other sources. */
KR_API KR_MUST_CHECK kr_status kr_source_fit(kr_source *source, const kr_loader_options *options);

/* Saves these values to a JSON file, atomically, and loads them into another table with the same column names:
 * validation data, or a resumed run. After an error nothing has changed. */
KR_API KR_MUST_CHECK kr_status kr_source_save_scales(const kr_source *source, const char *path);
KR_API KR_MUST_CHECK kr_status kr_source_load_scales(kr_source *source, const char *path);

/* Column i of a table: features first, then numeric targets. In the units of the file a value is value * scale +
 * offset, and its squared error is that of the scaled value times scale^2. All 0 for other sources and after the last
 * column; offset 0 and scale 1 before the fit. */
typedef struct kr_csv_column {
    const char *name; /* from the header, or "1", "2", ...; valid as long as the source */
    bool is_target;
    int64_t n_missing; /* missing values in the whole file */
    double mean, offset, scale;
    uint64_t reserved[4]; /* 0; for later versions */
} kr_csv_column;
KR_API kr_csv_column kr_source_column(const kr_source *source, int64_t i);

/* ---- batches ---- */

/* carry: row b reads the b-th of `batch` equal parts of the corpus, for states carried from batch to batch. There is no
 * shuffle. With each epoch all rows restart, which reset_bs marks. */
typedef struct kr_loader kr_loader;
KR_API kr_loader *kr_loader_create(const kr_source *source, const kr_loader_options *options);
KR_API void kr_loader_destroy(kr_loader *loader);

/* A batch: tensors on the tape. Positions after the end of a row are 0 and not scored. */
typedef struct kr_batch {
    kr_tensor *ids_bs;      /* i32; NULL: the data are features */
    kr_tensor *x_bsf;       /* f32; NULL: the data are ids */
    kr_tensor *labels_bs;   /* i32, or KR_NOT_SCORED; NULL: no labels */
    kr_tensor *targets_bso; /* f32; NULL: no targets */
    kr_tensor *scored_bs;   /* i32, with targets_bso: 1 for scored positions, otherwise 0 */
    /* i32: 1 where a document starts, otherwise 0; NULL: nowhere. The first position of a row is marked only with
     * `carry`: otherwise each row starts with the initial state. */
    kr_tensor *reset_bs;
    kr_tensor *mask_bs;  /* i32: 0 for padding, otherwise 1; NULL: no padding */
    int64_t n_positions; /* positions without padding */
    int64_t n_scored;
    int64_t epoch, step; /* from 0; the step counts within the epoch */
    void *reserved[4];   /* NULL; for later versions */
} kr_batch;

/* Reads the next batch. KR_END after the last epoch; *batch is all zeros then and after an error. */
KR_API KR_MUST_CHECK kr_status kr_loader_next(kr_tape *tape, kr_loader *loader, kr_batch *batch);

/* The position of a loader, as numbers to store. Together with source and options it determines all later batches: a
 * loader that restores it continues with the same batches, bit for bit. Restoring fails for other data or another batch
 * shape. */
typedef struct kr_loader_position {
    uint64_t seed;
    int64_t epoch, step;
    int64_t count, steps_per_epoch; /* size of the loader's part, to detect other data */
    uint64_t reserved[4];           /* 0; for later versions */
} kr_loader_position;
KR_API kr_loader_position kr_loader_snapshot(const kr_loader *loader);
KR_API KR_MUST_CHECK kr_status kr_loader_restore(kr_loader *loader, const kr_loader_position *position);

/* Fields of kr_loader_snapshot, for the next batch; 0 for NULL. */
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
