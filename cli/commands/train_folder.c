/* train_folder.c - the folder of a run: its files, and how they are removed. */
#define _POSIX_C_SOURCE 200809L
#include "cli/commands/cmd_train.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The step of a checkpoint's name; -1: not a checkpoint. */
static long long step_of(const char *name)
{
    if (strncmp(name, "step-", 5) != 0) return -1;
    char *end;
    const long long step = strtoll(name + 5, &end, 10);
    return *end || end == name + 5 ? -1 : step;
}

bool train_newest(const char *folder, char *path)
{
    char checkpoints[CLI_PATH_BYTES], name[300] = "", file[CLI_PATH_BYTES];
    path[0] = 0;
    if (!cli_join(checkpoints, folder, "checkpoints")) return false;
    DIR *entries = opendir(checkpoints);
    if (!entries) return errno == ENOENT || cli_cannot("open", checkpoints, errno);
    long long newest = -1;
    for (const struct dirent *entry; (entry = readdir(entries));) {
        const long long step = step_of(entry->d_name);
        if (step <= newest) continue;
        newest = step;
        snprintf(name, sizeof name, "%s", entry->d_name);
    }
    closedir(entries);
    return newest < 0 || (cli_join(path, checkpoints, name) && cli_join(file, path, "config.json"));
}

/* Files of a run other than checkpoints and models. */
static const char *const run_files[] = { "train.json",
                                         "task.json",
                                         "metrics.csv",
                                         "samples.txt",
                                         "report.html",
                                         "loss.svg",
                                         "accuracy.svg",
                                         "speed.svg",
                                         "learning-rate.svg",
                                         "gradient-norm.svg",
                                         "best",
                                         "tokenizer.json",
                                         "scales.json",
                                         "generation_config.json",
                                         "ranks.csv" };
enum { NRUN_FILES = sizeof run_files / sizeof *run_files };

const char *train_run_file(const char *folder)
{
    char path[CLI_PATH_BYTES];
    for (int i = 0; i < 3; i++)
        if (cli_join(path, folder, run_files[i]) && cli_exists(path)) return run_files[i];
    if (cli_join(path, folder, "checkpoints") && cli_exists(path)) return "checkpoints";
    return cli_model_file(folder);
}

static bool remove_file(const char *folder, const char *name)
{
    char path[CLI_PATH_BYTES];
    if (!cli_join(path, folder, name)) return false;
    return !unlink(path) || errno == ENOENT || cli_cannot("remove", path, errno);
}

/* A folder of files. */
static bool remove_folder(const char *folder)
{
    DIR *entries = opendir(folder);
    if (!entries) return cli_cannot("open", folder, errno);
    bool is_empty = true;
    for (const struct dirent *entry; is_empty && (entry = readdir(entries));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            is_empty = remove_file(folder, entry->d_name);
    closedir(entries);
    return is_empty && (!rmdir(folder) || cli_cannot("remove", folder, errno));
}

static bool remove_checkpoints(const char *folder)
{
    char checkpoints[CLI_PATH_BYTES], path[CLI_PATH_BYTES];
    if (!cli_join(checkpoints, folder, "checkpoints")) return false;
    DIR *entries = opendir(checkpoints);
    if (!entries) return errno == ENOENT || cli_cannot("open", checkpoints, errno);
    bool is_well = true;
    for (const struct dirent *entry; is_well && (entry = readdir(entries));)
        if (step_of(entry->d_name) >= 0 || !strncmp(entry->d_name, ".krait-", 7))
            is_well = cli_join(path, checkpoints, entry->d_name) && remove_folder(path);
    closedir(entries);
    return is_well && (!rmdir(checkpoints) || cli_cannot("remove", checkpoints, errno));
}

bool train_clear(const char *folder)
{
    if (!remove_checkpoints(folder)) return false;
    for (int i = 0; i < NRUN_FILES; i++)
        if (!remove_file(folder, run_files[i])) return false;
    for (const char *name; (name = cli_model_file(folder));)
        if (!remove_file(folder, name)) return false;
    return true;
}
