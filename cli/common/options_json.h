/* options_json.h - the options of a command as a JSON file: an object whose members are named as the options are.
 *
 *   cli_given given = { 0 };
 *   if ((status = cli_parse_given(&command, &values, argc, argv, &given)) >= 0) return status;
 *   cli_json_file file = { 0 };
 *   if (values.config && !cli_json_read(&file, &command, &values, &given, values.config)) return CLI_USAGE;
 *   ...
 *   cli_json_write(&command, &values, &given, "train.json");
 *   cli_json_close(&file);                                       // after the last use of the values: texts are in it
 *
 * Flags are true or false, numbers are numbers, choices and texts are strings, options that may be given several times
 * are arrays of strings. The command line overrides the file, the file overrides the fallback.
 */
#ifndef KR_CLI_COMMON_OPTIONS_JSON_H
#define KR_CLI_COMMON_OPTIONS_JSON_H

#include "cli/common/cli_options.h"

#include <krait/experimental/json.h>

typedef struct cli_json_file {
    kr_ctx *ctx;
    kr_json *root;
} cli_json_file;

/* Sets options that were not given before, on the command line or by an earlier file. False after an error message that
 * names file and member: not JSON, no such option, a value of another kind or outside the rule. */
bool cli_json_read(cli_json_file *file, const cli_command *command, void *values, cli_given *given, const char *path);
void cli_json_close(cli_json_file *file);

/* All values but those that were not given and have no fallback; reading them gives the same values. The file is
 * replaced atomically. False after an error message. */
bool cli_json_write(const cli_command *command, const void *values, const cli_given *given, const char *path);

#endif
