/* test_task_folder.c - folders of tasks' runs: what is removed and moved, what is left alone, and what is read again. */
#define _POSIX_C_SOURCE 200809L
#include "lab/task_folder.h"
#include "cli/common/cli_files.h"
#include "tests/temp_folder.h"

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0, "%s cannot be written", path);
}

/* Two columns behind the usual twelve; evaluations at steps 2, 4, 6 and 8. */
static const char metrics[] = "step,epoch,positions,loss,accuracy,lr,grad_norm,eval_loss,eval_accuracy,seconds,"
                              "positions_per_second,memory_bytes,eval_accuracy_a,eval_accuracy_b\n"
                              "1,0,8,1,,0.1,1,,,1,8,9,,\n"
                              "2,0,16,1,,0.1,1,1,1,1,8,9,1,1\n"
                              "4,1,32,1,,0.1,1,1,1,1,8,9,1,0.999999\n"
                              "5,2,40,1,,0.1,1,,,1,8,9,,\n"
                              "6,2,48,1,,0.1,1,1,1,1,8,9,1,1\n"
                              "8,3,64,1,,0.1,1,1,1,1,8,9,1,1\n"
                              "9,4,72,1,,0.1,1,,,1,8,9,,\n";

TEST(task_folder_streaks)
{
    static const struct {
        int64_t last_step;
        int streak;
    } want[] = { { 0, 0 }, { 1, 0 }, { 2, 1 }, { 3, 1 }, { 4, 0 }, { 5, 0 }, { 6, 1 }, { 7, 1 }, { 8, 2 }, { 99, 2 } };
    begin_folder();
    CHECK(task_folder_streak(folder, 9, 2) == 0, "there is no file yet");
    write_text(in_folder("metrics.csv"), metrics);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const int got = task_folder_streak(folder, want[i].last_step, 2);
        CHECK(got == want[i].streak, "up to step %lld: %d in a row, not %d", (long long)want[i].last_step, got,
              want[i].streak);
    }
    end_folder();
}

/* A run, as far as files go, and a file of somebody else. */
static void make_run(void)
{
    CHECK(mkdir(in_folder("checkpoints"), 0777) == 0 && mkdir(in_folder("checkpoints/step-1"), 0777) == 0,
          "no folders");
    write_text(in_folder("checkpoints/step-1/model.safetensors"), "m");
    write_text(in_folder("model.safetensors"), "m");
    write_text(in_folder("task.json"), "{}");
    write_text(in_folder("loss.svg"), "<svg/>");
    write_text(in_folder("notes.txt"), "mine");
    CHECK(symlink("checkpoints/step-1", in_folder("best")) == 0, "no link");
}

TEST(task_folder_set_aside_and_removed)
{
    begin_folder();
    CHECK(task_folder_begin("test", folder, false), "an empty folder is as good as none");
    make_run();
    CHECK(task_folder_set_aside(folder, 3), "it is not set aside");
    CHECK(cli_exists(in_folder("seed-3/checkpoints/step-1/model.safetensors")) &&
              cli_exists(in_folder("seed-3/best/model.safetensors")) && cli_exists(in_folder("seed-3/loss.svg")),
          "the run is not all there");
    CHECK(cli_exists(in_folder("notes.txt")) && files_in_folder(false) == 2, "%d files are left",
          files_in_folder(false));
    CHECK(task_folder_begin("test", folder, false), "a run that was set aside does not interfere");
    make_run();
    CHECK(task_folder_set_aside(folder, 3), "the same seed again takes the place of the first");
    make_run();
    CHECK(task_folder_begin("test", folder, true), "the run is not removed");
    CHECK(files_in_folder(false) == 2 && cli_exists(in_folder("notes.txt")), "%d files are left",
          files_in_folder(false));
    CHECK(cli_exists(in_folder("seed-3/task.json")), "what was set aside is gone");
    for (int i = 0; i < 2; i++) CHECK(task_folder_set_aside(folder, 3), "emptied"); /* of an empty run */
    CHECK(rmdir(in_folder("seed-3")) == 0, "the folder of the seed is not empty");
    end_folder();
}
