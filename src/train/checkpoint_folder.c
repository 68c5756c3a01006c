/* checkpoint_folder.c - the names in a run's folder: existing checkpoints, those to delete, temporary files. */
#include "train/checkpoint_file.h"

#include "base/hash.h"
#include "io/file.h"
#include "io/file_write.h"
#include "io/folder.h"
#include "io/json_impl.h"
#include "io/json_write.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { NAME_BYTES = 64, BLOCK_BYTES = 4096 };
static const char step_prefix[] = "step-";

/* ---- paths ---- */

bool kr_run_folder_open(kr_run_folder *f, kr_ctx *ctx, const char *path)
{
    *f = (kr_run_folder){ .ctx = ctx, .path = path };
    kr_arena_init(&f->arena, &ctx->memory, BLOCK_BYTES);
    return (f->checkpoints = kr_run_path(f, path, KR_CHECKPOINTS)) != NULL;
}

void kr_run_folder_close(kr_run_folder *f)
{
    kr_arena_deinit(&f->arena);
}

const char *kr_run_path(kr_run_folder *f, const char *folder, const char *name)
{
    return kr_path_join(f->ctx, &f->arena, folder, name);
}

const char *kr_run_step_path(kr_run_folder *f, int64_t step)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s%08lld", step_prefix, (long long)step);
    return kr_run_path(f, f->checkpoints, name);
}

/* The step of a checkpoint's name; -1: not a checkpoint. */
static int64_t step_of(const char *name)
{
    enum { DIGITS_MOST = 15 };
    const size_t skip = sizeof step_prefix - 1, n = strlen(name);
    if (n < skip + 8 || n > skip + DIGITS_MOST || strncmp(name, step_prefix, skip) != 0) return -1;
    int64_t step = 0;
    for (const char *c = name + skip; *c; c++) {
        if (*c < '0' || *c > '9') return -1;
        step = 10 * step + (*c - '0');
    }
    return n > skip + 8 && name[skip] == '0' ? -1 : step;
}

/* ---- which there are ---- */

typedef struct listing {
    int64_t *steps; /* NULL: they are only counted */
    int64_t count, capacity;
} listing;

static bool list_step(void *user, const char *name)
{
    listing *l = user;
    const int64_t step = step_of(name);
    if (step < 0 || (l->steps && l->count == l->capacity)) return true;
    if (l->steps) l->steps[l->count] = step;
    l->count++;
    return true;
}

static int newest_first(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

bool kr_run_steps(kr_run_folder *f, int64_t **steps, int64_t *count)
{
    listing l = { 0 };
    if (!kr_folder_each(f->ctx, f->checkpoints, list_step, &l)) return false;
    l.capacity = l.count;
    l.count = 0;
    l.steps = kr_arena_alloc(&f->arena, (size_t)(l.capacity + 1) * sizeof *l.steps);
    if (!l.steps)
        return kr_fail(f->ctx, KR_ERR_NOMEM, "no memory for a list of %lld checkpoints", (long long)l.capacity);
    if (!kr_folder_each(f->ctx, f->checkpoints, list_step, &l)) return false;
    qsort(l.steps, (size_t)l.count, sizeof *l.steps, newest_first);
    *steps = l.steps;
    *count = l.count;
    return true;
}

/* ---- which go ---- */

/* A file that cannot be removed does not stop the training. */
static void warn_if_failed(kr_ctx *ctx)
{
    if (!kr_ctx_failed(ctx)) return;
    kr_note(ctx, KR_LOG_WARNING, "%s", kr_ctx_message(ctx));
    kr_ctx_clear(ctx);
}

typedef struct cleaning {
    kr_run_folder *folder;
    const char *path;
} cleaning;

static bool clean_name(void *user, const char *name)
{
    const cleaning *c = user;
    kr_run_folder *f = c->folder;
    if (strncmp(name, KR_HIDDEN, sizeof KR_HIDDEN - 1) != 0) return true;
    const kr_arena_mark mark = kr_arena_mark_now(&f->arena);
    const char *path = kr_run_path(f, c->path, name);
    if (path) kr_path_remove(f->ctx, path);
    kr_arena_release(&f->arena, mark);
    warn_if_failed(f->ctx);
    return true;
}

void kr_run_clean(kr_run_folder *f)
{
    cleaning inside = { f, f->checkpoints }, outside = { f, f->path };
    kr_folder_each(f->ctx, f->checkpoints, clean_name, &inside);
    warn_if_failed(f->ctx);
    kr_folder_each(f->ctx, f->path, clean_name, &outside);
    warn_if_failed(f->ctx);
}

/* A checkpoint is first renamed to a hidden name: a process killed here leaves no partial checkpoint. */
static void remove_step(kr_run_folder *f, int64_t step)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, KR_HIDDEN "gone-%lld", (long long)step);
    const char *path = kr_run_step_path(f, step), *hidden = kr_run_path(f, f->checkpoints, name);
    if (path && hidden && kr_path_move(f->ctx, path, hidden)) kr_path_remove(f->ctx, hidden);
    warn_if_failed(f->ctx);
}

void kr_run_prune(kr_run_folder *f, int keep_last, int64_t best)
{
    int64_t *steps, count;
    if (keep_last <= 0) return;
    if (kr_run_steps(f, &steps, &count))
        for (int64_t i = keep_last; i < count; i++)
            if (steps[i] != best) remove_step(f, steps[i]);
    warn_if_failed(f->ctx);
}

/* ---- fingerprints ---- */

enum { N_NAMES = 3, SHARES_MOST = 1 << 16, FILE_BYTES = 128 }; /* FILE_BYTES: of a file in checkpoint.json, at most */
static const char *const names[N_NAMES] = { KR_MODEL_FILE, KR_TRAINING_FILE, KR_STATE_FILE };

typedef struct share_name {
    char text[NAME_BYTES];
} share_name;

static share_name name_of_share(int rank, int ranks)
{
    share_name name;
    snprintf(name.text, sizeof name.text, "training-%05d-of-%05d.safetensors", rank, ranks);
    return name;
}

const char *kr_share_path(kr_run_folder *f, const char *step_path, int rank, int ranks)
{
    return kr_run_path(f, step_path, name_of_share(rank, ranks).text);
}

bool kr_fingerprint_of(kr_ctx *ctx, const char *path, kr_fingerprint *print)
{
    kr_file file;
    if (!kr_file_open(&file, ctx, path, true)) return false;
    print->bytes = file.bytes;
    snprintf(print->hash, sizeof print->hash, "%016" PRIx64, kr_hash_bytes(KR_HASH_BEGIN, file.data, file.bytes));
    kr_file_close(&file);
    return true;
}

bool kr_checkpoint_is_there(kr_run_folder *f, const char *step_path)
{
    const char *path = kr_run_path(f, step_path, KR_MANIFEST_FILE);
    return path && kr_path_kind_of(path) == KR_PATH_FILE;
}

static bool write_text(kr_ctx *ctx, const char *path, const char *text, size_t bytes)
{
    kr_file_writer w;
    if (!kr_file_create(&w, ctx, path)) return false;
    if (kr_file_write(&w, text, bytes)) return kr_file_commit(&w);
    kr_file_discard(&w);
    return false;
}

static void write_print(kr_json_writer *w, const char *name, const kr_fingerprint *print)
{
    kr_json_write_open(w, name, '{');
    kr_json_write_integer(w, "bytes", (int64_t)print->bytes);
    kr_json_write_string(w, "hash", print->hash);
    kr_json_write_close(w, '}');
}

bool kr_manifest_write(kr_run_folder *f, const char *step_path, int ranks, const kr_fingerprint *shares)
{
    const size_t bytes = FILE_BYTES * (size_t)(N_NAMES + 1 + ranks);
    char *text = kr_arena_alloc(&f->arena, bytes);
    if (!text) return kr_fail(f->ctx, KR_ERR_NOMEM, "no memory for the fingerprints of %d files", ranks);
    kr_json_writer w;
    kr_json_write_begin(&w, text, bytes);
    kr_json_write_open(&w, NULL, '{');
    kr_json_write_integer(&w, "version", 1);
    for (int i = 0; i < N_NAMES; i++) {
        const char *path = kr_run_path(f, step_path, names[i]);
        kr_fingerprint print;
        if (!path) return false;
        if (kr_path_kind_of(path) == KR_PATH_NONE) continue;
        if (!kr_fingerprint_of(f->ctx, path, &print)) return false;
        write_print(&w, names[i], &print);
    }
    if (ranks > 1) kr_json_write_integer(&w, "ranks", ranks);
    for (int r = 0; ranks > 1 && r < ranks; r++) write_print(&w, name_of_share(r, ranks).text, &shares[r]);
    kr_json_write_close(&w, '}');
    kr_json_write_end(&w);
    const char *path = kr_run_path(f, step_path, KR_MANIFEST_FILE);
    return path && write_text(f->ctx, path, text, w.length);
}

static bool check_file(kr_run_folder *f, const char *step_path, const char *name, const kr_json *recorded)
{
    const char *path = kr_run_path(f, step_path, name), *hash = kr_json_text(kr_json_find(recorded, "hash"));
    kr_fingerprint print;
    if (!path || (!recorded && kr_path_kind_of(path) == KR_PATH_NONE)) return path != NULL;
    return kr_fingerprint_of(f->ctx, path, &print) &&
           kr_require(f->ctx,
                      kr_json_integer(kr_json_find(recorded, "bytes"), -1) == (int64_t)print.bytes && hash &&
                          strcmp(hash, print.hash) == 0,
                      KR_ERR_FORMAT,
                      "%s was changed or damaged: it is not the file that " KR_MANIFEST_FILE
                      " tells of; remove %s to resume from the checkpoint before it",
                      path, step_path);
}

static bool check_files(kr_run_folder *f, const char *step_path, const kr_json *root, int rank, int ranks, int shares)
{
    for (int i = rank; i < N_NAMES + shares; i += ranks) {
        const share_name share = name_of_share(i - N_NAMES, shares);
        const char *name = i < N_NAMES ? names[i] : share.text;
        if (!check_file(f, step_path, name, kr_json_find(root, name))) return false;
    }
    return true;
}

bool kr_manifest_check(kr_run_folder *f, const char *step_path, int rank, int ranks, int *shares)
{
    const char *path = kr_run_path(f, step_path, KR_MANIFEST_FILE);
    kr_json_options limits;
    kr_json_options_init(&limits);
    limits.max_bytes = FILE_BYTES * SHARES_MOST;
    kr_file file;
    if (!path || !kr_file_open(&file, f->ctx, path, false)) return false;
    const kr_json *root = kr_json_parse_in(f->ctx, &f->arena, (const char *)file.data, file.bytes, &limits);
    const int64_t n = root ? kr_json_integer(kr_json_find(root, "ranks"), 0) : 0;
    const bool is_right = root &&
                          kr_require(f->ctx, kr_json_integer(kr_json_find(root, "version"), -1) == 1, KR_ERR_FORMAT,
                                     "its version is not 1, which this library reads") &&
                          kr_require(f->ctx, n == 0 || (n > 1 && n <= SHARES_MOST), KR_ERR_FORMAT,
                                     "it has %lld shares, but must have from 2 to %d", (long long)n, SHARES_MOST);
    kr_file_close(&file);
    if (!is_right) return kr_blame(f->ctx, "%s", path);
    *shares = (int)n;
    return check_files(f, step_path, root, rank, ranks, *shares);
}
