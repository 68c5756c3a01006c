/* test_data_errors.c - files and options that are refused, with the exact words. */
#define _POSIX_C_SOURCE 200809L
#include "tests/data/corpus.h"

#include "tests/temp_folder.h"
#include "tests/error_tests.h"

static char path[512], image_text[1200];

/* The file that the next call reads. */
static const char *with(const void *data, size_t bytes)
{
    snprintf(path, sizeof path, "%s", in_folder("f"));
    write_image(path, data, bytes);
    return path;
}
#define TEXT(text) with(text, strlen(text))

/* The words behind the file's name. */
#define REFUSED_FILE(words, call)                                                                                      \
    do {                                                                                                               \
        char whole[1200];                                                                                              \
        CHECK(!(call), "%s is not refused", #call);                                                                    \
        snprintf(whole, sizeof whole, "%s%s", path, words);                                                            \
        CHECK_ERROR(ctx, KR_ERR_FORMAT, whole);                                                                        \
    } while (0)

/* ---- token files ---- */

static unsigned char image[256];

/* A token file of 3 ids in 2 documents, 8 bytes of it replaced by a number. */
static const char *token_file(size_t at, uint64_t value, int bytes, size_t length)
{
    static const int64_t lengths[] = { 2 };
    kr_source *source = counting_source(ctx, 3, lengths, 1);
    IGNORE(kr_source_save(source, in_folder("saved")));
    kr_source_destroy(source);
    file_image whole = read_image(in_folder("saved"));
    memcpy(image, whole.data, whole.bytes);
    free(whole.data);
    CHECK(whole.bytes == 64 + 16 + 16, "%zu bytes", whole.bytes);
    for (int i = 0; i < bytes; i++) image[at + (size_t)i] = (unsigned char)(value >> (8 * i));
    return with(image, length ? length : whole.bytes);
}

TEST(token_file_errors)
{
    begin();
    begin_folder();
    REFUSED_FILE(": not a token file: it does not begin with KRTOKENS and a header of 64 bytes",
                 kr_source_tokens(ctx, TEXT("hello")));
    REFUSED_FILE(": not a token file: it does not begin with KRTOKENS and a header of 64 bytes",
                 kr_source_tokens(ctx, token_file(0, 'k', 1, 0)));
    REFUSED_FILE(": token file of version 2, but 1 is known", kr_source_tokens(ctx, token_file(8, 2, 4, 0)));
    REFUSED_FILE(": ids of 3 bytes, but they have 2 or 4", kr_source_tokens(ctx, token_file(12, 3, 4, 0)));
    REFUSED_FILE(": ids below 70000 do not fit 2 bytes", kr_source_tokens(ctx, token_file(12, 2, 4, 0)));
    REFUSED_FILE(": 0 documents in 3 ids: both must be at least 1, and documents no more than ids",
                 kr_source_tokens(ctx, token_file(24, 0, 8, 0)));
    REFUSED_FILE(": has 96 bytes, which 18446744073709551615 ids of 4 bytes and 2 documents do not add up to",
                 kr_source_tokens(ctx, token_file(16, UINT64_MAX, 8, 0)));
    REFUSED_FILE(": has 95 bytes, which 3 ids of 4 bytes and 2 documents do not add up to",
                 kr_source_tokens(ctx, token_file(0, 'K', 1, 95)));
    REFUSED_FILE(": at byte 80: document 0 begins at id 1, but starts must ascend from 0 and be below 3",
                 kr_source_tokens(ctx, token_file(80, 1, 8, 0)));
    REFUSED_FILE(": at byte 88: document 1 begins at id 3, but starts must ascend from 0 and be below 3",
                 kr_source_tokens(ctx, token_file(88, 3, 8, 0)));
    /* ids are looked at when they are read */
    kr_source *source = kr_source_tokens(ctx, token_file(68, 70000, 4, 0));
    kr_loader *loader = kr_loader_create(source, NULL);
    kr_batch batch;
    kr_tape_reset(t);
    REFUSED_FILE(": at byte 68: id 70000, but ids are below 70000", kr_loader_next(t, loader, &batch) == KR_OK);
    CHECK(kr_loader_step(loader) == 0, "it moved on");
    kr_loader_destroy(loader);
    kr_source_destroy(source);
    REFUSED_FILE(": has 3 bytes, which is not a number of ids of 2 bytes",
                 kr_source_raw_tokens(ctx, TEXT("abc"), 2, 300, -1));
    REFUSED_FILE(": has 0 bytes, which is not a number of ids of 2 bytes",
                 kr_source_raw_tokens(ctx, TEXT(""), 2, 300, -1));
    REFUSED(KR_ERR_ARG, "raw_tokens: id_bytes = 3, but ids have 2 or 4 bytes",
            kr_source_raw_tokens(ctx, path, 3, 300, -1));
    REFUSED(KR_ERR_ARG, "raw_tokens: n_ids = 65537 must be from 1 to what 2 bytes hold",
            kr_source_raw_tokens(ctx, path, 2, 65537, -1));
    REFUSED(KR_ERR_ARG, "raw_tokens: separator = 300 must be -1 or below n_ids = 300",
            kr_source_raw_tokens(ctx, path, 2, 300, 300));
    REFUSED(KR_ERR_IO, "cannot open no/such/file: no such file or directory", kr_source_tokens(ctx, "no/such/file"));
    REFUSED(KR_ERR_ARG, "cannot open a file: path is NULL", kr_source_tokens(ctx, NULL));
    end_folder();
    end();
}

TEST(source_open_refusals)
{
    begin();
    kr_source_options o;
    kr_source_options_init(&o);
    REFUSED(KR_ERR_ARG, "source.open: the options are NULL; they say what to open", kr_source_open(ctx, NULL));
    REFUSED(KR_ERR_ARG, "cannot open a file: path is NULL", kr_source_open(ctx, &o));
    o.format = KR_SOURCE_FORMAT_CSV;
    REFUSED(KR_ERR_ARG, "csv: path is NULL", kr_source_open(ctx, &o));
    o.format = (kr_source_format)7;
    REFUSED(KR_ERR_ARG, "source.open: format = 7 is not a kr_source_format", kr_source_open(ctx, &o));
    end();
}

/* ---- text ---- */

TEST(text_errors)
{
    begin();
    begin_folder();
    kr_tokenizer *tok = kr_tokenizer_bytes(ctx);
    kr_text_options o;
    kr_text_options_init(&o);
    REFUSED_FILE(": it contains no text", kr_source_text(ctx, TEXT(""), tok, NULL));
    REFUSED_FILE(", line 2: json: at byte 9: expected a value, got '}'",
                 kr_source_jsonl(ctx, TEXT("{\"text\": \"a\"}\n{\"text\": }\n"), "text", tok, NULL));
    REFUSED_FILE(", line 1: the object has no field \"body\"",
                 kr_source_jsonl(ctx, TEXT("{\"text\": \"a\"}"), "body", tok, NULL));
    REFUSED_FILE(", line 3: field \"text\" is a number, but must be a string",
                 kr_source_jsonl(ctx, TEXT("\n{\"text\": \"a\"}\n{\"text\": 5}"), "text", tok, NULL));
    REFUSED_FILE(", line 1: is not an object", kr_source_jsonl(ctx, TEXT("[1]"), "text", tok, NULL));
    REFUSED_FILE(": it contains no text", kr_source_jsonl(ctx, TEXT("\n \n{\"text\": \"\"}"), "text", tok, NULL));
    REFUSED(KR_ERR_ARG, "jsonl: field is NULL", kr_source_jsonl(ctx, path, NULL, tok, NULL));
    REFUSED(KR_ERR_ARG, "text: the tokenizer is NULL", kr_source_string(ctx, "a", 1, NULL, NULL));
    REFUSED(KR_ERR_ARG, "text: is NULL, but has 1 bytes", kr_source_string(ctx, NULL, 1, tok, NULL));
    o.document_end = 256;
    REFUSED(KR_ERR_ARG, "text: document_end = 256 must be -1 or one of the tokenizer's 256 ids",
            kr_source_string(ctx, "a", 1, tok, &o));
    o.document_end = -1;
    o.separator = "";
    REFUSED(KR_ERR_ARG, "text: separator is empty; NULL makes the text one document",
            kr_source_string(ctx, "a", 1, tok, &o));
    CHECK(files_in_folder(false) == 1, "files are left");
    kr_tokenizer_destroy(tok);
    end_folder();
    end();
}

/* ---- tables ---- */

TEST(table_errors)
{
    begin();
    begin_folder();
    kr_csv_options o;
    kr_csv_options_init(&o);
    REFUSED_FILE(": has no rows", kr_source_csv(ctx, TEXT(" \n\n"), &o));
    REFUSED_FILE(": has no rows", kr_source_csv(ctx, TEXT("a,b\n"), &o));
    REFUSED_FILE(", line 3, column 2: 'x' is not a decimal number", kr_source_csv(ctx, TEXT("a,b\n1,2\n3,x\n"), &o));
    REFUSED_FILE(", line 2, column 1: '' is a missing value, and kr_csv_options.missing is error",
                 kr_source_csv(ctx, TEXT("a,b\n,2\n"), &o));
    REFUSED_FILE(", line 2, column 1: 'nan' is a missing value, and kr_csv_options.missing is error",
                 kr_source_csv(ctx, TEXT("a\nnan\n"), &o));
    REFUSED_FILE(", line 2, column 1: '1e39' is beyond the largest f32", kr_source_csv(ctx, TEXT("a\n1e39\n"), &o));
    REFUSED_FILE(", line 2, column 1: '+-1' is not a decimal number", kr_source_csv(ctx, TEXT("a\n+-1\n"), &o));
    REFUSED_FILE(", line 3: 1 columns, but there are 2 in the first line",
                 kr_source_csv(ctx, TEXT("a,b\n1,2\n3\n"), &o));
    REFUSED_FILE(", line 2, column 2: a double quote is not closed at the end of the field",
                 kr_source_csv(ctx, TEXT("a,b\n1,\"2\n"), &o));
    o.targets = "b";
    o.is_class = true;
    REFUSED_FILE(", line 2, column 2: 1.5 is not a class, a whole number from 0 to 16777215",
                 kr_source_csv(ctx, TEXT("a,b\n1,1.5\n"), &o));
    o.targets = "c";
    snprintf(image_text, sizeof image_text, "%s: there is no column 'c' among 2", TEXT("a,b\n1,2\n"));
    REFUSED(KR_ERR_ARG, image_text, kr_source_csv(ctx, path, &o));
    o.targets = "a,b";
    snprintf(image_text, sizeof image_text, "%s: no column is left for the features", path);
    REFUSED(KR_ERR_ARG, image_text, kr_source_csv(ctx, path, &o));
    o.features = "a";
    snprintf(image_text, sizeof image_text, "%s: is_class needs one target, not 2", path);
    REFUSED(KR_ERR_ARG, image_text, kr_source_csv(ctx, path, &o));
    o.delimiter = '"';
    REFUSED(KR_ERR_ARG, "csv: the delimiter cannot be a zero, a line break or a double quote",
            kr_source_csv(ctx, path, &o));
    end_folder();
    end();
}

/* ---- images ---- */

TEST(image_errors)
{
    begin();
    begin_folder();
    static const unsigned char good[] = { 0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2, 9, 9, 9, 9 };
    unsigned char bad[sizeof good];
#define WITH(at, value) (memcpy(bad, good, sizeof good), bad[at] = (value), with(bad, sizeof bad))
    REFUSED_FILE(": is compressed; unpack it first (gunzip)", kr_source_idx(ctx, TEXT("\x1f\x8b\x08"), NULL, NULL));
    REFUSED_FILE(": not an IDX file: it does not begin with two zero bytes, a type and a rank",
                 kr_source_idx(ctx, WITH(1, 1), NULL, NULL));
    REFUSED_FILE(": IDX of type 0x0d, but it must be bytes (0x08)", kr_source_idx(ctx, WITH(2, 13), NULL, NULL));
    REFUSED_FILE(": IDX of rank 1, but 3 is wanted", kr_source_idx(ctx, WITH(3, 1), NULL, NULL));
    REFUSED_FILE(": at byte 8: axis 1 has size 0", kr_source_idx(ctx, WITH(11, 0), NULL, NULL));
    REFUSED_FILE(": 4 bytes follow the header, which does not match its sizes",
                 kr_source_idx(ctx, WITH(7, 2), NULL, NULL));
    REFUSED_FILE(": 4 bytes follow the header, which does not match its sizes",
                 kr_source_idx(ctx, WITH(4, 255), NULL, NULL));
    REFUSED_FILE(": ends in its header, after 12 of 16 bytes", kr_source_idx(ctx, with(good, 12), NULL, NULL));
#undef WITH
    static const unsigned char labels[] = { 0, 0, 8, 1, 0, 0, 0, 2, 7, 3 };
    write_image(in_folder("labels"), labels, sizeof labels);
    with(good, sizeof good);
    snprintf(image_text, sizeof image_text, "%s: 2 labels, but %s has 1 images", in_folder("labels"), path);
    REFUSED(KR_ERR_FORMAT, image_text, kr_source_idx(ctx, path, in_folder("labels"), NULL));
    kr_idx_options o;
    kr_idx_options_init(&o);
    o.patch_width = 3;
    snprintf(image_text, sizeof image_text, "%s: images of 2 x 2 cannot be cut into patches of 1 x 3", path);
    REFUSED(KR_ERR_ARG, image_text, kr_source_idx(ctx, path, NULL, &o));
    o.patch_width = 1;
    o.deviation = 0;
    snprintf(image_text, sizeof image_text, "%s: mean = 0 must be finite and deviation = 0 positive", path);
    REFUSED(KR_ERR_ARG, image_text, kr_source_idx(ctx, path, NULL, &o));
    end_folder();
    end();
}

/* ---- loaders and tasks ---- */

#define REFUSED_WITH(field, value, status, text)                                                                       \
    do {                                                                                                               \
        kr_loader_options changed = o;                                                                                 \
        changed.field = (value);                                                                                       \
        REFUSED(status, text, kr_loader_create(source, &changed));                                                     \
    } while (0)

TEST(loader_errors)
{
    begin();
    kr_source *source = counting_source(ctx, 20, NULL, 0);
    kr_loader_options o;
    kr_loader_options_init(&o);
    o.length = 4;
    REFUSED_WITH(batch, 0, KR_ERR_ARG, "loader: batch = 0 must be from 1 to 16777216");
    REFUSED_WITH(length, -1, KR_ERR_ARG, "loader: length = -1 must be from 0 to 4294967296");
    REFUSED_WITH(length, 0, KR_ERR_ARG, "loader: length = 0 stands for whole documents, which needs pack = false");
    REFUSED_WITH(n_epochs, -1, KR_ERR_ARG, "loader: n_epochs = -1 must not be negative");
    REFUSED_WITH(part, (kr_data_part)2, KR_ERR_ARG, "loader: part = 2 is not a kr_data_part");
    REFUSED_WITH(part, KR_DATA_PART_VALIDATION, KR_ERR_ARG,
                 "loader: the validation part is empty: validation_fraction is 0");
    REFUSED_WITH(validation_fraction, 1, KR_ERR_ARG, "loader: validation_fraction = 1 must be at least 0 and below 1");
    REFUSED_WITH(validation_fraction, (double)NAN, KR_ERR_ARG,
                 "loader: validation_fraction = nan must be at least 0 and below 1");
    REFUSED_WITH(validation_fraction, 0.97, KR_ERR_ARG,
                 "loader: nothing to train on: the source has 20 positions, validation_fraction is 0.97");
    REFUSED_WITH(drop_last, true, KR_ERR_ARG,
                 "loader: drop_last leaves no batch: 19 positions do not fill 8 rows of 4");
    o.carry = true;
    REFUSED_WITH(pack, false, KR_ERR_ARG, "loader: carry needs pack = true");
    REFUSED_WITH(batch, 20, KR_ERR_ARG, "loader: 19 positions are too few for 20 carried rows");
    kr_loader *loader = kr_loader_create(source, &o);
    kr_loader_position position = kr_loader_snapshot(loader);
    position.step = 1;
    REFUSED(KR_ERR_ARG, "loader.restore: invalid position: step 1 of epoch 0, of 1 steps",
            kr_loader_restore(loader, &position) == KR_OK);
    position.count = 18;
    REFUSED(KR_ERR_ARG,
            "loader.restore: the position belongs to 1 steps through 18 positions, but this loader has 1 through 19; "
            "source and "
            "options must be those it was saved with",
            kr_loader_restore(loader, &position) == KR_OK);
    REFUSED(KR_ERR_ARG, "loader.restore: position is NULL", kr_loader_restore(loader, NULL) == KR_OK);
    kr_ctx *foreign = kr_test_ctx(1, NULL);
    kr_tape *foreign_tape = kr_tape_create(foreign, KR_TAPE_NO_GRAD);
    kr_batch batch;
    REFUSED(KR_ERR_STATE, "loader.next: the tape belongs to another context than the loader",
            kr_loader_next(foreign_tape, loader, &batch) == KR_OK);
    kr_tape_destroy(foreign_tape);
    kr_ctx_destroy(foreign);
    kr_loader_destroy(loader);
    kr_source_destroy(source);
    end();
}
