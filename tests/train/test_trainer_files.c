/* test_trainer_files.c - what befalls a run's folder: kills at any moment, disks that are full, folders that are not to be
 * written, memory that is refused, files that were damaged. */
#define _POSIX_C_SOURCE 200809L
#include "tests/memory.h"
#include "tests/train/running.h"

#include "nn/params_impl.h"
#include "train/trainer.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

enum { STEPS = 24 };

static uint64_t hash_of_weights(const kr_model *model)
{
    return kr_params_values_hash(kr_network_params(kr_model_network(model)));
}

/* A run that saves with every step, evaluates with some, carries states and averages. */
static run_setup killed_setup(const char *run_folder)
{
    return (run_setup){ .family = KR_FAMILY_MAMBA2,
                        .steps = STEPS,
                        .folder = run_folder,
                        .save_every = run_folder ? 1 : 0,
                        .has_validation = true,
                        .eval_every = 3,
                        .carry = true,
                        .has_ema = true };
}

/* ---- kills ---- */

/* After each step of an uninterrupted run: everything, and the weights of its model folder. */
typedef struct history {
    uint64_t all[STEPS + 1], saved[STEPS + 1];
} history;

static bool note_history(void *user, kr_trainer *trainer, const kr_train_progress *p)
{
    history *h = user;
    const run r = { .trainer = trainer };
    kr_optimizer *opt = kr_trainer_optimizer(trainer);
    h->all[p->step] = run_hash(&r);
    kr_optimizer_use_ema(opt, true);
    h->saved[p->step] = kr_params_values_hash(trainer->params);
    kr_optimizer_use_ema(opt, false);
    return true;
}

static history run_unharmed(void)
{
    history h = { .all = { 0 } };
    run_setup setup = killed_setup(NULL);
    setup.on_step = note_history;
    setup.user = &h;
    run r = run_begin(&setup);
    CHECK(kr_trainer_run(r.trainer) == KR_OK, "%s", kr_ctx_message(r.ctx));
    run_end(&r);
    return h;
}

/* In the child: resumes from the last checkpoint, to the end. */
static void go_on_and_exit(const char *run_folder)
{
    const run_setup setup = killed_setup(run_folder);
    run r = run_begin(&setup);
    IGNORE(kr_trainer_resume(r.trainer));
    _exit(kr_trainer_run(r.trainer) == KR_OK ? 0 : 1);
}

/* True if it came to its end before it was killed. */
static bool kill_a_run(const char *run_folder, int64_t microseconds)
{
    const pid_t child = fork();
    if (child == 0) go_on_and_exit(run_folder);
    const struct timespec pause = { .tv_nsec = microseconds * 1000 };
    nanosleep(&pause, NULL);
    kill(child, SIGKILL);
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child, "no child");
    CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) == 0, "the run failed");
    return WIFEXITED(status);
}

static void check_model(kr_ctx *ctx, const char *path, const history *h, int64_t step, const char *after)
{
    kr_model *model = kr_model_load(ctx, path, NULL);
    bool right = false;
    if (CHECK(model != NULL, "%s, %s: %s", after, path, kr_ctx_message(ctx))) {
        const uint64_t hash = hash_of_weights(model);
        /* that of the folder may be any that was saved */
        for (int64_t s = step < 0 ? 1 : step; s <= (step < 0 ? STEPS : step); s++) right = right || h->saved[s] == hash;
        CHECK(right, "%s, %s: other weights", after, path);
    }
    kr_ctx_clear(ctx);
    kr_model_destroy(model);
}

static void check_folder(const char *run_folder, const history *h, const char *after)
{
    const run_setup setup = killed_setup(run_folder);
    run r = run_begin(&setup);
    char path[700];
    for (int64_t step = 0; step <= STEPS; step++) {
        snprintf(path, sizeof path, "%s/checkpoints/step-%08lld", run_folder, (long long)step);
        struct stat info;
        if (stat(path, &info) == 0) check_model(r.ctx, path, h, step, after);
    }
    snprintf(path, sizeof path, "%s/config.json", run_folder);
    if (access(path, F_OK) == 0) check_model(r.ctx, run_folder, h, -1, after);
    snprintf(path, sizeof path, "%s/best", run_folder);
    struct stat info;
    if (lstat(path, &info) == 0) check_model(r.ctx, path, h, -1, after);
    const int64_t newest = newest_step(run_folder);
    CHECK(kr_trainer_resume(r.trainer) == KR_OK, "%s: %s", after, kr_ctx_message(r.ctx));
    const int64_t step = kr_trainer_progress(r.trainer).step;
    CHECK(newest < 1 ? step == 0 : step == newest && run_hash(&r) == h->all[step],
          "%s: resumed at step %lld, newest %lld", after, (long long)step, (long long)newest);
    run_end(&r);
}

TEST(trainer_survives_kills)
{
    if (kr_test_chooses(NULL)) SKIP("a process that has used a GPU cannot use it in its children");
    begin_folder();
    const history h = run_unharmed();
    const int rounds = kr_test_quick() ? 6 : 60;
    int64_t longest = 20000; /* of a life, in microseconds: a few steps */
    int n_ends = 0;
    for (int i = 0; i < rounds; i++) {
        char after[80];
        const int64_t life = kr_test_below(longest);
        snprintf(after, sizeof after, "round %d, killed after %lld us", i, (long long)life);
        const bool is_ended = kill_a_run(the_run(), life);
        check_folder(the_run(), &h, after);
        if (!is_ended) continue;
        CHECK(newest_step(the_run()) == STEPS, "%s: it ended at step %lld", after, (long long)newest_step(the_run()));
        remove_tree(the_run());
        n_ends++;
    }
    /* what is left is brought to its end, and leaves nothing on its way */
    const run_setup setup = killed_setup(the_run());
    run r = run_begin(&setup);
    CHECK(kr_trainer_resume(r.trainer) == KR_OK && kr_trainer_run(r.trainer) == KR_OK, "%s", kr_ctx_message(r.ctx));
    CHECK(run_hash(&r) == h.all[STEPS], "it ends with other bits, after %d runs", n_ends);
    run_end(&r);
    int hidden = 0;
    static const char *const places[] = { "run", "run/checkpoints" };
    for (int i = 0; i < 2; i++) {
        DIR *dir = opendir(in_folder(places[i]));
        for (struct dirent *e; dir && (e = readdir(dir));) hidden += strncmp(e->d_name, ".krait", 6) == 0;
        if (dir) closedir(dir);
    }
    CHECK(hidden == 0, "%d files are left on their way", hidden);
    remove_tree(folder);
}

/* What a killed process can leave on its way goes, a link not with what it leads to. */
TEST(trainer_removes_what_was_on_its_way)
{
    begin_folder();
    const run_setup setup = { .family = KR_FAMILY_MAMBA2, .steps = 3, .folder = the_run() };
    run r = run_begin(&setup);
    CHECK(kr_trainer_run(r.trainer) == KR_OK, "%s", kr_ctx_message(r.ctx));
    run_end(&r);
    static const char *const files[] = { "run/.krait-12-0.tmp", "run/.krait-model", "run/checkpoints/.krait-new/x",
                                         "run/checkpoints/.krait-gone-1/y" };
    mkdir(in_folder("run/checkpoints/.krait-new"), 0755);
    mkdir(in_folder("run/checkpoints/.krait-gone-1"), 0755);
    for (int i = 0; i < 4; i++) write_image(in_folder(files[i]), "x", 1);
    CHECK(symlink("checkpoints/step-00000003", in_folder("run/.krait-best")) == 0, "no link");
    r = run_begin(&setup);
    CHECK(kr_trainer_resume(r.trainer) == KR_OK && kr_trainer_progress(r.trainer).step == 3, "%s",
          kr_ctx_message(r.ctx));
    run_end(&r);
    for (int i = 0; i < 4; i++) CHECK(!is_there(files[i]), "%s is left", files[i]);
    CHECK(!is_there("run/.krait-best") && is_there("run/checkpoints/step-00000003/config.json"), "the link's place");
    remove_tree(folder);
}

/* Of a process killed between a checkpoint and what comes behind it. */
TEST(trainer_resumes_between_a_checkpoint_and_its_link)
{
    begin_folder();
    run_setup setup = { .family = KR_FAMILY_MAMBA2,
                        .steps = 4,
                        .folder = the_run(),
                        .save_every = 1,
                        .keep_last = 1,
                        .has_validation = true,
                        .eval_every = 4 };
    run r = run_begin(&setup);
    CHECK(kr_trainer_run(r.trainer) == KR_OK, "%s", kr_ctx_message(r.ctx));
    const uint64_t hash = hash_of_weights(r.model);
    run_end(&r);
    /* as it was before: a link to a checkpoint that has gone, a model of before */
    remove(in_folder("run/best"));
    CHECK(symlink("checkpoints/step-00000001", in_folder("run/best")) == 0, "no link");
    remove(in_folder("run/model.safetensors"));
    remove(in_folder("run/config.json"));
    r = run_begin(&setup);
    CHECK(kr_trainer_resume(r.trainer) == KR_OK && kr_trainer_run(r.trainer) == KR_OK, "%s", kr_ctx_message(r.ctx));
    static const char *const places[] = { "run", "run/best" };
    for (int i = 0; i < 2; i++) {
        kr_model *model = kr_model_load(r.ctx, in_folder(places[i]), NULL);
        CHECK(model && hash_of_weights(model) == hash, "%s is not brought up to the checkpoint: %s", places[i],
              kr_ctx_message(r.ctx));
        kr_model_destroy(model);
    }
    run_end(&r);
    remove_tree(folder);
}

/* ---- disks that are full, folders that are not to be written ---- */

/* Files of this process can have so many bytes; 0: as many as they like. */
static void limit_files(rlim_t bytes)
{
    static struct rlimit before;
    static bool is_known;
    if (!is_known) is_known = getrlimit(RLIMIT_FSIZE, &before) == 0;
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = before;
    if (bytes) limit.rlim_cur = bytes;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0, "no limit");
}

/* Whichever file does not fit: an error with its name, the checkpoints before it as they were, and later a whole one. */
TEST(trainer_survives_full_disks)
{
    begin_folder();
    const history h = run_unharmed();
    static const rlim_t limits[] = { 16, 300, 3000, 20000, 60000 };
    const run_setup setup = killed_setup(the_run());
    run r = run_begin(&setup);
    run_steps(&r, 1, (double[1]){ 0 });
    CHECK(kr_trainer_save(r.trainer) == KR_OK, "%s", kr_ctx_message(r.ctx));
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        const int64_t step = kr_trainer_progress(r.trainer).step;
        run_steps(&r, 1, (double[1]){ 0 });
        limit_files(limits[i]);
        CHECK(kr_trainer_save(r.trainer) == KR_ERR_IO, "it fits into %lld bytes", (long long)limits[i]);
        limit_files(0);
        CHECK(strstr(kr_ctx_message(r.ctx), "cannot write ") && strstr(kr_ctx_message(r.ctx), the_run()), "%s",
              kr_ctx_message(r.ctx));
        kr_ctx_clear(r.ctx);
        CHECK(newest_step(the_run()) == step && run_hash(&r) == h.all[step + 1], "after %lld bytes: step %lld",
              (long long)limits[i], (long long)newest_step(the_run()));
        check_folder(the_run(), &h, "full");
        CHECK(kr_trainer_save(r.trainer) == KR_OK && newest_step(the_run()) == step + 1, "%s", kr_ctx_message(r.ctx));
    }
    CHECK(kr_trainer_run(r.trainer) == KR_OK && run_hash(&r) == h.all[STEPS], "%s", kr_ctx_message(r.ctx));
    run_end(&r);
    check_folder(the_run(), &h, "at the end");
    remove_tree(folder);
}

/* Run itself: stops with the error, and when called again does what is still pending before it continues. */
static bool count_calls(void *user, kr_trainer *trainer, const kr_train_progress *p)
{
    int64_t *calls = user;
    (void)trainer;
    ++*calls;
    CHECK(p->step == *calls, "step %lld is told as call %lld", (long long)p->step, (long long)*calls);
    return true;
}

TEST(trainer_runs_on_after_a_full_disk)
{
    begin_folder();
    int64_t calls = 0;
    run r = run_begin(&(run_setup){ .family = KR_FAMILY_MAMBA2,
                                    .steps = 4,
                                    .save_every = 2,
                                    .folder = the_run(),
                                    .on_step = count_calls,
                                    .user = &calls });
    limit_files(64);
    CHECK(kr_trainer_run(r.trainer) == KR_ERR_IO && calls == 1, "%lld steps are told", (long long)calls);
    kr_ctx_clear(r.ctx);
    CHECK(kr_trainer_run(r.trainer) == KR_ERR_IO && calls == 1, "%lld steps are told", (long long)calls);
    kr_ctx_clear(r.ctx);
    limit_files(0);
    CHECK(kr_trainer_run(r.trainer) == KR_OK && calls == 4 && newest_step(the_run()) == 4, "%s", kr_ctx_message(r.ctx));
    run_end(&r);
    remove_tree(folder);
}

/* In a child without the privileges that pass over permissions; 0: all as it should be. */
static int save_into_locked_folder(void)
{
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) return 77;
    run r = run_begin(&(run_setup){ .family = KR_FAMILY_MAMBA2, .steps = 5, .folder = the_run() });
    run_steps(&r, 1, (double[1]){ 0 });
    if (kr_trainer_save(r.trainer) != KR_ERR_IO) return 1;
    if (!strstr(kr_ctx_message(r.ctx), "permission denied") || !strstr(kr_ctx_message(r.ctx), "/run")) return 2;
    kr_ctx_clear(r.ctx);
    if (kr_trainer_step(r.trainer) != KR_OK) return 3;
    run_end(&r);
    return 0;
}

TEST(trainer_survives_locked_folders)
{
    if (kr_test_chooses(NULL)) SKIP("a process that has used a GPU cannot use it in its children");
    begin_folder();
    chmod(folder, 0755);
    mkdir(the_run(), 0755);
    chmod(the_run(), 0555);
    const pid_t child = fork();
    if (child == 0) _exit(save_into_locked_folder());
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status), "no child");
    CHECK(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77, "check %d failed", WEXITSTATUS(status));
    chmod(the_run(), 0755);
    remove_tree(folder);
}

/* ---- memory that is refused ---- */

/* But for the scratch of kernels. */
static size_t held_by(kr_ctx *ctx)
{
    drop_scratch(ctx);
    return kr_ctx_memory(ctx).live_bytes;
}

TEST(trainer_survives_refused_memory)
{
    begin_folder();
    const run_setup setup = killed_setup(the_run());
    run r = run_prepare(&setup);
    const size_t before = held_by(r.ctx);
    size_t n = 1;
    for (;; n++) {
        kr_ctx_fail_allocation(r.ctx, n);
        r.trainer = run_trainer(&r, r.model, r.loader);
        kr_ctx_fail_allocation(r.ctx, 0);
        if (r.trainer) break;
        CHECK_ERROR_HAS(r.ctx, KR_ERR_NOMEM, "no memory");
        CHECK(held_by(r.ctx) == before, "create leaks at allocation %zu", n);
    }
    CHECK(n > 5, "create asks for memory %zu times only", n);
    run_steps(&r, 2, (double[2]){ 0 });
    const uint64_t hash = run_hash(&r);
    for (n = 1;; n += kr_test_quick() ? 5 : 1) {
        const size_t held = held_by(r.ctx);
        kr_ctx_fail_allocation(r.ctx, n);
        const kr_status status = kr_trainer_save(r.trainer);
        kr_ctx_fail_allocation(r.ctx, 0);
        if (status == KR_OK) break;
        CHECK_ERROR_HAS(r.ctx, KR_ERR_NOMEM, "no memory");
        CHECK(held_by(r.ctx) == held && run_hash(&r) == hash, "save leaks at allocation %zu", n);
    }
    CHECK(n > 10 && newest_step(the_run()) == 2, "save asks for memory %zu times only", n);
    run_end(&r);
    r = run_begin(&setup);
    const uint64_t initial = run_hash(&r);
    for (n = 1;; n += kr_test_quick() ? 5 : 1) {
        const size_t held = held_by(r.ctx);
        kr_ctx_fail_allocation(r.ctx, n);
        const kr_status status = kr_trainer_resume(r.trainer);
        kr_ctx_fail_allocation(r.ctx, 0);
        if (status == KR_OK) break;
        CHECK_ERROR_HAS(r.ctx, KR_ERR_NOMEM, "no memory");
        CHECK(held_by(r.ctx) == held && run_hash(&r) == initial && kr_trainer_progress(r.trainer).step == 0,
              "resume leaves a trace at allocation %zu", n);
    }
    CHECK(n > 10 && run_hash(&r) == hash, "resume asks for memory %zu times only", n);
    run_end(&r);
    remove_tree(folder);
}
