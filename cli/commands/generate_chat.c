/* generate_chat.c - krait generate at a terminal: a line is read, the model continues from it, and so on.
 *
 * Each line but the first is read with a line break before it. The state is carried from answer to answer, in constant
 * memory. Ctrl-C ends an answer, Ctrl-D the chat. Prompts and notes go to stderr, answers to stdout.
 */
#define _POSIX_C_SOURCE 200809L
#include "cli/commands/cmd_generate.h"
#include "cli/common/interrupt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct chat {
    generate_run *run;
    char *line; /* of getline */
    size_t capacity;
    bool is_over;
} chat;

static const char help[] = "  TEXT          continue from this line; an empty line lets the model continue\n"
                           "  //...         a line that begins with /\n"
                           "  /save FILE    save the state of this chat\n"
                           "  /load FILE    continue from a saved state\n"
                           "  /reset        reset the state\n"
                           "  /help         this list\n"
                           "  /quit         end the chat, like Ctrl-D; Ctrl-C ends an answer\n";

/* The word after a command; NULL, after an error message, if it is missing. */
static char *file_of(char *line, const char *command)
{
    char *name = line + strlen(command);
    while (*name == ' ') name++;
    if (*name) return name;
    cli_complain(NULL, "%s needs a file name", command);
    return NULL;
}

static bool is_command(const char *line, const char *command)
{
    const size_t length = strlen(command);
    return !strncmp(line, command, length) && (!line[length] || line[length] == ' ');
}

static void obey(chat *t, char *line)
{
    const char *file;
    if (is_command(line, "/help")) fputs(help, stderr);
    else if (is_command(line, "/quit")) t->is_over = true;
    else if (is_command(line, "/reset")) t->is_over = !run_reset(t->run);
    else if (is_command(line, "/save")) {
        if ((file = file_of(line, "/save")) && run_save(t->run, file)) fprintf(stderr, "saved %s\n", file);
    } else if (is_command(line, "/load")) {
        if ((file = file_of(line, "/load")) && run_load(t->run, file)) fprintf(stderr, "loaded %s\n", file);
    } else {
        cli_complain("/help lists the commands; a line that begins with // is text", "unknown command %s", line);
    }
}

/* Reads a line of that many bytes, a line break at its end included, and answers. */
static void answer(chat *t, char *line, size_t bytes)
{
    generate_run *run = t->run;
    const bool is_text = !run->values->is_ids;
    const bool has_break = bytes && line[bytes - 1] == '\n';
    if (has_break && is_text && run->is_begun &&
        bytes > 1) { /* to the front: the model ends the line, not the reader */
        memmove(line + 1, line, bytes - 1);
        line[0] = '\n';
    } else if (has_break) {
        bytes--;
    }
    const cli_text_source source = { .tok = is_text ? run->language.tok : NULL,
                                     .is_plain = run->values->is_plain,
                                     .name = "the line",
                                     .text = line,
                                     .bytes = bytes };
    run->asked = cli_seconds();
    run->n_prompt = 0;
    run_status status = run_read(run, &source);
    if (status == RUN_OK) status = run_answer(run);
    else if (status == RUN_INTERRUPTED) fputs("krait: interrupted; the tokens read so far are kept\n", stderr);
    if (run->out.is_closed || run->out.has_failed) t->is_over = true;
}

/* The next line, without its command; false at the end. */
static bool next_line(chat *t)
{
    fputs("> ", stderr);
    fflush(stderr);
    cli_forget_interrupt();
    errno = 0;
    const ssize_t bytes = getline(&t->line, &t->capacity, stdin);
    if (bytes >= 0) {
        char *line = t->line;
        if (line[0] != '/') answer(t, line, (size_t)bytes);
        else if (line[1] == '/') answer(t, line + 1, (size_t)bytes - 1);
        else {
            line[strcspn(line, "\n")] = 0;
            obey(t, line);
        }
        kr_ctx_clear(t->run->ctx);
        return !t->is_over;
    }
    fputc('\n', stderr);
    if (errno != EINTR) return false;
    clearerr(stdin);
    return true;
}

int generate_chat(generate_run *run)
{
    chat t = { .run = run };
    fputs("type a line, and the model continues from it; /help lists the commands, Ctrl-C ends an answer, Ctrl-D the "
          "chat\n",
          stderr);
    while (next_line(&t)) continue;
    free(t.line);
    return run->out.has_failed ? CLI_FAILED : CLI_OK;
}
