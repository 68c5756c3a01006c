/* test_options_json.c - values of every kind go into a JSON file and come back the same; the line wins over the file. */
#define _POSIX_C_SOURCE 200809L
#include "cli/common/options_json.h"
#include "tests/temp_folder.h"
#include "tests/harness.h"

#define HOLDS(...) CHECK((__VA_ARGS__), "%s", #__VA_ARGS__)

typedef struct every_values {
    bool flag, other;
    int whole, choice, none;
    int64_t integer;
    uint64_t natural;
    double real, unset;
    const char *text, *any;
    cli_texts texts;
} every_values;

#define AT(field) offsetof(every_values, field)
static const cli_option options[] = {
    { "", 0, NULL, CLI_HEADING, 0, NULL, 0, "All" },
    { "flag", 0, NULL, CLI_FLAG, AT(flag), NULL, 0, "" },
    { "other", 0, NULL, CLI_FLAG, AT(other), NULL, 0, "" },
    { "whole", 'w', "N", CLI_INT, AT(whole), "-3", -10, "" },
    { "choice", 0, "a|b|c", CLI_CHOICE, AT(choice), "b", 0, "" },
    { "none", 0, "x|y", CLI_CHOICE, AT(none), NULL, 0, "" },
    { "integer", 0, "N", CLI_I64, AT(integer), "5", 0, "" },
    { "natural", 0, "N", CLI_U64, AT(natural), "0", 0, "" },
    { "real", 0, "X", CLI_REAL, AT(real), "0.1", -1000, "" },
    { "unset", 0, "X", CLI_REAL, AT(unset), NULL, 0, "" },
    { "text", 0, "T", CLI_TEXT, AT(text), NULL, 0, "" },
    { "any", 0, "T", CLI_ANY, AT(any), "", 0, "" },
    { "texts", 0, "T", CLI_TEXTS, AT(texts), NULL, 0, "" },
    { 0 },
};
static const cli_command command = { .name = "every", .options = options };

static int parse(every_values *v, cli_given *given, int argc, const char *const *argv)
{
    char *words[32];
    *v = (every_values){ 0 };
    *given = (cli_given){ { 0 } };
    words[0] = (char *)(uintptr_t) "every";
    for (int i = 0; i < argc; i++) words[i + 1] = (char *)(uintptr_t)argv[i];
    return cli_parse_given(&command, v, argc + 1, words, given);
}
#define PARSE(v, given, ...)                                                                                           \
    parse((v), (given), (int)(sizeof((const char *[]){ __VA_ARGS__ }) / sizeof(char *)),                               \
          (const char *[]){ __VA_ARGS__ })

static void check_same(const every_values *a, const every_values *b)
{
    HOLDS(a->flag == b->flag && a->other == b->other && a->whole == b->whole && a->choice == b->choice);
    HOLDS(a->none == b->none && a->integer == b->integer && a->natural == b->natural);
    HOLDS(a->real == b->real && a->unset == b->unset);
    HOLDS((!a->text && !b->text) || (a->text && b->text && !strcmp(a->text, b->text)));
    HOLDS(!strcmp(a->any, b->any) && a->texts.count == b->texts.count);
    for (int i = 0; i < a->texts.count; i++) HOLDS(!strcmp(a->texts.text[i], b->texts.text[i]));
}

static void round_trip(const every_values *v, const cli_given *given)
{
    every_values back;
    cli_given again;
    cli_json_file file = { 0 };
    HOLDS(cli_json_write(&command, v, given, in_folder("v.json")));
    HOLDS(parse(&back, &again, 0, NULL) == -1);
    HOLDS(cli_json_read(&file, &command, &back, &again, in_folder("v.json")));
    check_same(v, &back);
    for (int i = 0; options[i].name; i++)
        CHECK(cli_is_given(&command, v, given, options[i].name) ==
                      cli_is_given(&command, &back, &again, options[i].name) ||
                  given->origin[i] == CLI_LINE,
              "%s", options[i].name);
    cli_json_close(&file);
}

TEST(options_json_round_trip)
{
    every_values v;
    cli_given given;
    begin_folder();
    HOLDS(parse(&v, &given, 0, NULL) == -1);
    HOLDS(v.none == -1 && v.choice == 1);
    round_trip(&v, &given);
    HOLDS(PARSE(&v, &given, "--flag", "--whole=-10", "--choice", "c", "--none", "x", "--integer", "9223372036854775807",
                "--natural", "18446744073709551615", "--real", "-0.30000000000000004", "--unset", "0", "--text",
                "a \"b\"\\\n\t\x01 \xc3\xa9", "--any", "", "--texts", "p", "--texts", "q") == -1);
    round_trip(&v, &given);
    HOLDS(PARSE(&v, &given, "--text", "\xff") == -1);
    CHECK(!cli_json_write(&command, &v, &given, in_folder("w.json")), "a text that JSON cannot spell");
    HOLDS(access(in_folder("w.json"), F_OK) != 0);
    end_folder();
}

TEST(options_json_precedence)
{
    every_values v;
    cli_given given;
    cli_json_file file = { 0 };
    begin_folder();
    FILE *out = fopen(in_folder("v.json"), "wb");
    fputs("{\"texts\": [\"f\", \"g\"], \"whole\": 4, \"flag\": true, \"other\": true, \"real\": 2, \"integer\": 5}",
          out);
    fclose(out);
    HOLDS(PARSE(&v, &given, "--whole", "3", "--flag=false", "--texts", "line") == -1);
    HOLDS(cli_json_read(&file, &command, &v, &given, in_folder("v.json")));
    HOLDS(v.whole == 3 && !v.flag && v.other && v.real == 2 && v.choice == 1);
    HOLDS(v.texts.count == 1 && !strcmp(v.texts.text[0], "line"));
    HOLDS(cli_origin_of(&command, &given, "whole") == CLI_LINE && cli_origin_of(&command, &given, "real") == CLI_FILE);
    HOLDS(cli_origin_of(&command, &given, "choice") == CLI_FALLBACK);
    HOLDS(cli_is_given(&command, &v, &given, "real") && !cli_is_given(&command, &v, &given, "integer"));
    HOLDS(!cli_is_given(&command, &v, &given, "flag") && cli_is_given(&command, &v, &given, "other"));
    cli_json_close(&file);
    end_folder();
}
