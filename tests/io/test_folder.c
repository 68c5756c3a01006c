/* test_folder.c - folders: listed, emptied, moved; names for files in them. */
#define _POSIX_C_SOURCE 200809L
#include "io/folder.h"

#include "tests/temp_folder.h"

typedef struct seen {
    int count;
    bool has_a, has_link;
    int stops_at;
} seen;

static bool see(void *user, const char *name)
{
    seen *s = user;
    s->has_a = s->has_a || strcmp(name, "a") == 0;
    s->has_link = s->has_link || strcmp(name, "link") == 0;
    return ++s->count != s->stops_at;
}

static bool exists(const char *name)
{
    struct stat info;
    return lstat(in_folder(name), &info) == 0;
}

TEST(folders_are_listed_and_emptied)
{
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    bool is_made = false;
    CHECK(kr_folder_make(ctx, in_folder("x")) && kr_folder_make(ctx, in_folder("x")), "%s", kr_ctx_message(ctx));
    CHECK(kr_folder_make(ctx, in_folder("y")), "%s", kr_ctx_message(ctx));
    write_image(in_folder("x/a"), "a", 1);
    write_image(in_folder("y/b"), "b", 1);
    CHECK(kr_path_link(ctx, "../y", in_folder("x/link"), in_folder("x/.spare"), &is_made) && is_made, "no link");
    seen all = { 0 }, first = { .stops_at = 1 }, none = { 0 };
    CHECK(kr_folder_each(ctx, in_folder("x"), see, &all) && all.count == 2 && all.has_a && all.has_link, "%d names",
          all.count);
    CHECK(!kr_folder_each(ctx, in_folder("x"), see, &first) && first.count == 1 && !kr_ctx_failed(ctx), "not stopped");
    CHECK(kr_folder_each(ctx, in_folder("z"), see, &none) && none.count == 0, "names of nothing");
    CHECK(kr_folder_sync(ctx, in_folder("x")), "%s", kr_ctx_message(ctx));
    /* links go, and not what they lead to */
    CHECK(kr_path_remove(ctx, in_folder("x")) && !exists("x") && exists("y/b"), "%s", kr_ctx_message(ctx));
    CHECK(kr_path_link(ctx, "y", in_folder("link"), in_folder(".spare"), &is_made) && is_made, "no link");
    CHECK(kr_path_link(ctx, "none", in_folder("link"), in_folder(".spare"), &is_made) && is_made, "not replaced");
    CHECK(kr_path_link(ctx, "y", in_folder("link"), in_folder(".spare"), &is_made) && is_made, "not replaced");
    CHECK(kr_path_remove(ctx, in_folder("link")) && !exists("link") && exists("y/b"), "%s", kr_ctx_message(ctx));
    CHECK(kr_path_remove(ctx, in_folder("y/b")) && kr_path_remove(ctx, in_folder("y/b")), "%s", kr_ctx_message(ctx));
    /* folders within stay */
    kr_folder_make(ctx, in_folder("y/inner"));
    write_image(in_folder("y/inner/c"), "c", 1);
    CHECK(!kr_path_remove(ctx, in_folder("y")) && exists("y/inner/c"), "a folder within is removed");
    CHECK_ERROR_HAS(ctx, KR_ERR_IO, "/y/inner: ");
    remove(in_folder("y/inner/c"));
    rmdir(in_folder("y/inner"));
    rmdir(in_folder("y"));
    kr_ctx_destroy(ctx);
    end_folder();
}

TEST(files_are_shared_and_copied)
{
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    write_image(in_folder("a"), "one", 3);
    write_image(in_folder("b"), "two", 3);
    for (int i = 0; i < 2; i++) /* the second time they are one file already */
        CHECK(kr_file_share(ctx, in_folder("a"), in_folder("b"), in_folder(".spare")) &&
                  file_is(in_folder("b"), "one") && !exists(".spare"),
              "%s", kr_ctx_message(ctx));
    CHECK(kr_file_copy(ctx, in_folder("a"), in_folder("c")) && file_is(in_folder("c"), "one"), "%s",
          kr_ctx_message(ctx));
    CHECK(kr_file_copy(ctx, in_folder("a"), in_folder("a")) && file_is(in_folder("a"), "one"), "%s",
          kr_ctx_message(ctx));
    write_image(in_folder("empty"), "", 0);
    CHECK(kr_file_copy(ctx, in_folder("empty"), in_folder("c")) && file_is(in_folder("c"), ""), "%s",
          kr_ctx_message(ctx));
    CHECK(kr_path_move(ctx, in_folder("c"), in_folder("d")) && !exists("c") && exists("d"), "%s", kr_ctx_message(ctx));
    CHECK(!kr_path_move(ctx, in_folder("c"), in_folder("d")), "moved from nowhere");
    CHECK_ERROR_HAS(ctx, KR_ERR_IO, "cannot make ");
    CHECK(!kr_file_copy(ctx, in_folder("c"), in_folder("d")), "copied from nowhere");
    CHECK_ERROR_HAS(ctx, KR_ERR_IO, "cannot open ");
    CHECK(!kr_folder_make(ctx, in_folder("e/f")), "made in nowhere");
    CHECK_ERROR_HAS(ctx, KR_ERR_IO, "cannot make ");
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
    end_folder();
}
