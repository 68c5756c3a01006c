/* task_folder.c - the files of a task's run: remove, move aside, read back. */
#define _POSIX_C_SOURCE 200809L
#include "lab/task_folder.h"

#include "cli/common/cli_files.h"
#include "cli/common/cli_options.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* All files that a run writes, except *.svg. */
static const char *const run_files[] = { "task.json",         "metrics.csv", "report.html", "checkpoints", "best",
                                         "model.safetensors", "config.json", "pr.csv",      "weights.csv", "pictures" };
enum { N_RUN_FILES = sizeof run_files / sizeof *run_files, MOST_DEPTH = 8 };

static bool is_of_run(const char *name)
{
    const size_t length = strlen(name);
    for (int i = 0; i < N_RUN_FILES; i++)
        if (!strcmp(run_files[i], name)) return true;
    return length > 4 && !strcmp(name + length - 4, ".svg");
}

/* Calls visit with the path of each entry of a folder, or of a run's entries; returns false as soon as visit does. */
typedef bool visit_fn(const char *path, const char *name, const void *user);
static bool visit_entries(const char *folder, bool of_run, visit_fn *visit, const void *user)
{
    DIR *dir = opendir(folder);
    if (!dir) return cli_cannot("open", folder, errno);
    bool ok = true;
    for (struct dirent *entry; ok && (entry = readdir(dir)) != NULL;) {
        char path[CLI_PATH_BYTES];
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        if (of_run && !is_of_run(entry->d_name)) continue;
        ok = cli_join(path, folder, entry->d_name) && visit(path, entry->d_name, user);
    }
    closedir(dir);
    return ok;
}

/* Recursive; removes links, not their targets. */
static bool remove_entry(const char *path, const char *name, const void *user)
{
    const int depth = *(const int *)user, below = depth - 1;
    struct stat info;
    (void)name;
    if (lstat(path, &info) != 0) return errno == ENOENT || cli_cannot("remove", path, errno);
    if (!S_ISDIR(info.st_mode)) return unlink(path) == 0 || cli_cannot("remove", path, errno);
    if (depth == 0) return cli_cannot("remove", path, ELOOP);
    return visit_entries(path, false, remove_entry, &below) && (rmdir(path) == 0 || cli_cannot("remove", path, errno));
}

static bool find_entry(const char *path, const char *name, const void *user)
{
    (void)path;
    (void)user;
    return !strcmp(name, "report.html") || strstr(name, ".svg") != NULL; /* alone they do not make a run */
}

bool task_folder_begin(const char *command, const char *folder, bool force)
{
    const int depth = MOST_DEPTH;
    if (!cli_exists(folder)) return mkdir(folder, 0777) == 0 || cli_cannot("make", folder, errno);
    if (!cli_is_folder(folder)) {
        cli_complain(NULL, "%s: %s exists and is not a directory", command, folder);
        return false;
    }
    if (force) return visit_entries(folder, true, remove_entry, &depth);
    if (visit_entries(folder, true, find_entry, NULL)) return true;
    cli_complain("choose another folder, continue with --resume, or replace it with --force",
                 "%s: %s holds a run or a model already", command, folder);
    return false;
}

static bool move_entry(const char *path, const char *name, const void *user)
{
    char to[CLI_PATH_BYTES];
    return cli_join(to, user, name) && (rename(path, to) == 0 || cli_cannot("move", path, errno));
}

bool task_folder_set_aside(const char *folder, uint64_t seed)
{
    char name[40], aside[CLI_PATH_BYTES];
    const int depth = MOST_DEPTH;
    snprintf(name, sizeof name, "seed-%" PRIu64, seed);
    if (!cli_join(aside, folder, name) || !remove_entry(aside, name, &depth)) return false;
    if (mkdir(aside, 0777) != 0) return cli_cannot("make", aside, errno);
    return visit_entries(folder, true, move_entry, aside);
}

/* ---- previous evaluations ---- */

/* Are the last n fields of a line present? *all_right: they are all 1. */
static bool has_evaluation(char *line, int n, bool *all_right)
{
    *all_right = true;
    for (int i = 0; i < n; i++) {
        char *comma = strrchr(line, ','), *end;
        if (!comma) return false;
        const double value = strtod(comma + 1, &end);
        if (end == comma + 1) return false;
        *all_right = *all_right && value == 1;
        *comma = 0;
    }
    return true;
}

int task_folder_streak(const char *folder, int64_t last_step, int n_extra)
{
    char path[CLI_PATH_BYTES], line[1024];
    int streak = 0;
    if (!cli_join(path, folder, "metrics.csv")) return 0;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        bool all_right;
        if (line[0] < '0' || line[0] > '9' || strtoll(line, NULL, 10) > last_step) continue;
        if (has_evaluation(line, n_extra, &all_right)) streak = all_right ? streak + 1 : 0;
    }
    if (file) fclose(file);
    return streak;
}
