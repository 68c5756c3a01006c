/* cli_files.h - file and folder helpers of commands, and their error messages. */
#ifndef KR_CLI_COMMON_CLI_FILES_H
#define KR_CLI_COMMON_CLI_FILES_H

#include <stdbool.h>
#include <stddef.h>

enum { CLI_PATH_BYTES = 4096 };

/* Remedy in the error message about a folder without a model. */
extern const char cli_model_remedy[];

/* "cannot VERB PATH: REASON", with the words of errno for it; always false. */
bool cli_cannot(const char *verb, const char *path, int error);

/* "FOLDER/NAME" in text, which has CLI_PATH_BYTES; false after an error message: too long. */
bool cli_join(char *text, const char *folder, const char *name);

bool cli_exists(const char *path);
bool cli_is_folder(const char *path);
bool cli_make_folder(const char *path);                /* with its parents; false after an error message */
bool cli_is_same(const char *path, const char *other); /* both exist and are one file or folder */

/* The file by which a folder holds a model, such as "config.json"; NULL: none. */
const char *cli_model_file(const char *folder);

/* True if a model may be written to the folder, existing or not; else prints an error message. */
bool cli_may_write_model(const char *command, const char *folder, bool force);

/* All of a file of at most max_bytes and a 0 behind it, to free(); NULL after an error message. */
char *cli_read_file(const char *path, size_t max_bytes, size_t *bytes);

/* Copies a file to another path, atomically; false after an error message. */
bool cli_copy_file(const char *from, const char *to);

/* The path as one word of a command line, into text: quoted if a shell needs it. */
const char *cli_shell_word(const char *path, char *text, size_t bytes);

/* "5GB", "300 MiB", "1000": bytes, with the usual units; 0 if it is not a size of at least 1. */
size_t cli_size_of(const char *text);

#endif
