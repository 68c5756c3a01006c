/* fuzz_data.c - any bytes as a corpus: a source all of which can be loaded, or an error. The first byte tells what the
 * rest is: a token file ('t'), bare ids ('r'), images ('i'), labels ('l'), a table ('c' and, without a header, 'n'; with
 * missing values 'm' and 'd'), the scales of a table ('s'), JSON Lines ('j') or text ('x'). With KR_FUZZ_SEEDS naming a
 * folder, valid ones of each are written there first. */
#define _POSIX_C_SOURCE 200809L
#include "fuzz.h"

#include <krait/data.h>

static kr_ctx *ctx;
static kr_tape *tape;
static kr_tokenizer *tok;
static char images[64];  /* a file of two, for labels */
static char numbers[64]; /* a table, for scales */

static void write_file(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0) abort();
}

static void remove_images(void)
{
    remove(images);
    remove(numbers);
}

/* ---- seeds ---- */

static void write_seed(const char *folder, const char *name, const void *data, size_t size)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    write_file(path, data, size);
}

static void write_token_seed(const char *folder)
{
    char whole[512] = "t";
    kr_text_options o;
    kr_text_options_init(&o);
    o.separator = " ";
    kr_source *source = kr_source_string(ctx, "a few short documents", 21, tok, &o);
    if (kr_source_save(source, fuzz_path()) != KR_OK) abort();
    kr_source_destroy(source);
    FILE *f = fopen(fuzz_path(), "rb");
    const size_t size = f ? fread(whole + 1, 1, sizeof whole - 1, f) : 0;
    if (!f || fclose(f) != 0) abort();
    write_seed(folder, "tokens", whole, size + 1);
}

static void write_seeds(const char *folder)
{
    static const char image[] = "i\0\0\10\3\0\0\0\2\0\0\0\1\0\0\0\3abcdef", label[] = "l\0\0\10\1\0\0\0\2\5\7";
    static const char *const texts[] = { "c\"a\",b\n1,2.5\n-3e-2,\"4\"\n\n5,6\r\n",
                                         "n1,2\n3,4\n5,+6\n",
                                         "j{\"t\": \"one\"}\n\n{\"u\": [1, {}], \"t\": \"two\\u00e9\"}\n",
                                         "xone--two",
                                         "ma,b\n1,NA\n,2\n\n3,4\nnan,5\n",
                                         "da,b\n1,NA\n2,3\n",
                                         "s{\"format\": \"krait.scales\", \"version\": 1, \"scaling\": \"standard\", "
                                         "\"columns\": [{\"name\": \"a\", \"role\": \"feature\", \"mean\": 2, "
                                         "\"offset\": 2, \"scale\": 0.5}]}" };
    write_token_seed(folder);
    write_seed(folder, "images", image, sizeof image - 1);
    write_seed(folder, "labels", label, sizeof label - 1);
    write_seed(folder, "raw", "r\1\0\2\0\7\0\3\0", 9);
    for (int i = 0; i < 7; i++) {
        char name[16];
        snprintf(name, sizeof name, "text%d", i);
        write_seed(folder, name, texts[i], strlen(texts[i]));
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    static const char small_table[] = "a\n1\n3\nNA\n4\n";
    static const char two_images[] = "\0\0\10\3\0\0\0\2\0\0\0\1\0\0\0\3abcdef";
    ctx = fuzz_ctx();
    tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    tok = kr_tokenizer_bytes(ctx);
    const int handle = mkstemp(fuzz_template(images));
    if (handle < 0) abort();
    close(handle);
    write_file(images, two_images, sizeof two_images - 1);
    const int table = mkstemp(fuzz_template(numbers));
    if (table < 0) abort();
    close(table);
    write_file(numbers, small_table, sizeof small_table - 1);
    atexit(remove_images);
    const char *folder = getenv("KR_FUZZ_SEEDS");
    if (folder) write_seeds(folder);
    return 0;
}

/* ---- reading ---- */

/* The source if the status is KR_OK; else it is gone, with the error. */
static kr_source *unless(kr_source *source, kr_status status)
{
    if (!source || status == KR_OK) return source;
    kr_source_destroy(source);
    return NULL;
}

static kr_source *fitted(kr_source *source)
{
    return unless(source, source ? kr_source_fit(source, NULL) : KR_OK);
}

static kr_source *scaled(kr_source *source, const char *path)
{
    return unless(source, source ? kr_source_load_scales(source, path) : KR_OK);
}

static kr_source *open_source(char kind, const char *input)
{
    kr_csv_options csv;
    kr_csv_options_init(&csv);
    kr_text_options text;
    kr_text_options_init(&text);
    switch (kind) {
    case 't': return kr_source_tokens(ctx, input);
    case 'r': return kr_source_raw_tokens(ctx, input, 2, 300, 7);
    case 'i': return kr_source_idx(ctx, input, NULL, NULL);
    case 'l': return kr_source_idx(ctx, images, input, NULL);
    case 'c': csv.targets = "b"; return kr_source_csv(ctx, input, &csv);
    case 'n':
        csv.has_header = false;
        csv.is_class = true;
        csv.targets = "2";
        return kr_source_csv(ctx, input, &csv);
    case 'm':
        csv.missing = KR_CSV_MISSING_FORWARD;
        csv.scaling = KR_CSV_SCALING_STANDARD;
        return fitted(kr_source_csv(ctx, input, &csv));
    case 'd':
        csv.missing = KR_CSV_MISSING_DROP;
        csv.scaling = KR_CSV_SCALING_MIN_MAX;
        csv.targets = "b";
        return fitted(kr_source_csv(ctx, input, &csv));
    case 's':
        csv.missing = KR_CSV_MISSING_MEAN;
        csv.scaling = KR_CSV_SCALING_STANDARD;
        return scaled(kr_source_csv(ctx, numbers, &csv), input);
    case 'j': return kr_source_jsonl(ctx, input, "t", tok, NULL);
    default: text.separator = "--"; return kr_source_text(ctx, input, tok, &text);
    }
}

static void check_labels(const kr_batch *batch, const kr_source_info *info)
{
    const int32_t *ids = kr_tensor_data(batch->ids_bs), *labels = kr_tensor_data(batch->labels_bs);
    for (int64_t i = 0; i < kr_tensor_count(batch->ids_bs); i++)
        if (ids[i] < 0 || ids[i] >= info->n_ids) abort();
    for (int64_t i = 0; i < kr_tensor_count(batch->labels_bs); i++)
        if (labels[i] != KR_NOT_SCORED && (labels[i] < 0 || labels[i] >= info->n_classes)) abort();
}

/* Only ids of token files are looked at when they are read: any other file that was opened loads. */
static void load_all(const kr_source *source, char kind, bool pack)
{
    const kr_source_info info = kr_source_info_of(source);
    kr_loader_options o;
    kr_loader_options_init(&o);
    o.batch = 3;
    o.length = 5;
    o.pack = pack;
    o.n_epochs = 1;
    kr_loader *loader = kr_loader_create(source, &o);
    kr_batch batch;
    int64_t steps = 0;
    for (; steps < 64 && kr_loader_next(tape, loader, &batch) == KR_OK; steps++) {
        check_labels(&batch, &info);
        kr_tape_reset(tape);
    }
    if (kr_ctx_failed(ctx) && loader && !strchr("trms", kind)) abort(); /* scaled numbers may be too large */
    if (!kr_ctx_failed(ctx) && steps < 64 && steps != kr_loader_steps_per_epoch(loader)) abort();
    kr_loader_destroy(loader);
    kr_ctx_clear(ctx);
    kr_tape_reset(tape);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    const char kind = (char)data[0];
    kr_source *source = open_source(kind, fuzz_file(data + 1, size - 1));
    if ((source != NULL) == kr_ctx_failed(ctx)) abort();
    kr_ctx_clear(ctx);
    kr_tape_reset(tape);
    if (source) load_all(source, kind, true);
    if (source) load_all(source, kind, false);
    kr_source_destroy(source);
    return 0;
}
