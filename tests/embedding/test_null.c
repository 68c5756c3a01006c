/* test_null.c - every public function survives NULL for each of its pointer arguments: an error or a neutral value.
 *
 * The calls are generated from the headers (test_null_calls.awk), so that a new function is called too, or does not compile
 * until null_values.h has arguments for it.
 */
#define _XOPEN_SOURCE 700
#include "tests/embedding/null_values.h"

#include <ftw.h>
#include <setjmp.h>
#include <signal.h>

static void check_status(const char *name, bool all_null, kr_status status)
{
    CHECK(!all_null || status != KR_OK, "%s: no error for NULL", name);
}
static void check_tensor(const char *name, bool all_null, const kr_tensor *x)
{
    CHECK(!all_null || !x, "%s: a result for NULL", name);
}

#include "test_null_calls.h"

enum { NCALLS = sizeof null_calls / sizeof *null_calls };

static sigjmp_buf after_crash;

static void on_crash(int number)
{
    siglongjmp(after_crash, number);
}

static void call(int i, unsigned null)
{
    kr_ctx_clear(made.ctx);
    if (!made.back) kr_tape_reset(made.tape);
    const int number = sigsetjmp(after_crash, 1);
    alarm(60); /* a call that hangs */
    if (number == 0) null_calls[i].call(null);
    alarm(0);
    CHECK(number == 0, "%s: signal %d with NULL for pointer arguments of the mask %#x", null_calls[i].name, number,
          null);
}

static void call_all(int i)
{
    const int n = null_calls[i].npointers;
    const unsigned all = (1u << n) - 1;
    for (int k = 0; k < n; k++) call(i, 1u << k);
    if (n > 1) call(i, all);
}

/* kr_back_* are for rules. */
static bool is_of_rules(int i)
{
    return strncmp(null_calls[i].name, "kr_back_", 8) == 0;
}

static void call_in_rule(kr_back *back)
{
    made.back = back;
    for (int i = 0; i < NCALLS; i++)
        if (is_of_rules(i)) call_all(i);
    for (int index = -1; index <= 1; index += 2) { /* there are one input, one output and nothing saved */
        bool is_new = true;
        kr_ctx_clear(made.ctx);
        CHECK(!kr_back_in(back, index) && !kr_back_out(back, index) && !kr_back_saved(back, index), "index %d", index);
        CHECK(!kr_back_grad(back, index) && !kr_back_wants(back, index), "index %d", index);
        CHECK(!kr_back_into(back, index, &is_new) && !is_new, "index %d", index);
        kr_back_accumulate(back, index, kr_back_grad(back, 0));
        CHECK_ERROR_HAS(made.ctx, KR_ERR_ARG, "back: index");
    }
    kr_ctx_clear(made.ctx);
    CHECK(!kr_back_tensor(back, (kr_back_kind)4, 0), "kind 4");
    CHECK_ERROR_HAS(made.ctx, KR_ERR_ARG, "back: kind = 4 is not a kr_back_kind");
    kr_ctx_clear(made.ctx);
    CHECK(kr_back_in(back, 0) && kr_back_out(back, 0) && kr_back_grad(back, 0) && kr_back_wants(back, 0), "index 0");
    made.back = NULL;
}

enum { NSIGNALS = 4 };
static const int signals[NSIGNALS] = { SIGSEGV, SIGBUS, SIGFPE, SIGALRM };

static void catch_crashes(struct sigaction *old)
{
    const struct sigaction action = { .sa_handler = on_crash };
    for (int i = 0; i < NSIGNALS; i++)
        if (sigaction(signals[i], &action, &old[i]) != 0) exit(2);
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *at)
{
    (void)info;
    (void)type;
    (void)at;
    return remove(path);
}

TEST(null_arguments_are_survived)
{
    struct sigaction old[NSIGNALS];
    make_values();
    catch_crashes(old);
    for (int i = 0; i < NCALLS; i++)
        if (!is_of_rules(i)) call_all(i);
    kr_ctx_clear(made.ctx);
    kr_tape_reset(made.tape);
    static const kr_rule rule = { .name = "calls", .backward = call_in_rule };
    kr_tensor *x = kr_input(made.tape, kr_zeros(made.tape, KR_DTYPE_F32, KR_SHAPE(1)));
    kr_tensor *y = kr_zeros(made.tape, KR_DTYPE_F32, KR_SHAPE(1));
    CHECK(kr_record(made.tape, &(kr_record_args){ .rule = &rule, .n_in = 1, .in = &x, .n_out = 1, .out = &y }) == KR_OK,
          "%s", kr_ctx_message(made.ctx));
    kr_backward(made.tape, y);
    CHECK_OK(made.ctx);
    kr_ctx_clear(made.ctx);
    for (int i = 0; i < NSIGNALS; i++) sigaction(signals[i], &old[i], NULL);
    destroy_values();
    nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

/* The exported functions are those that are called. */
TEST(null_calls_cover_the_exported_functions)
{
    FILE *file = fopen(KR_SOURCE_DIR "/tools/abi.txt", "r");
    char line[256];
    int count = 0;
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        if (!line[0] || line[0] == '#') continue;
        int i = 0;
        while (i < NCALLS && strcmp(null_calls[i].name, line) != 0) i++;
        CHECK(i < NCALLS, "%s is exported, but no header declares it", line);
        count++;
    }
    CHECK(count == NCALLS, "%d exported functions, but %d in the headers", count, (int)NCALLS);
    if (file) fclose(file);
}
