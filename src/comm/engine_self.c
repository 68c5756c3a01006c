/* engine_self.c - the engine of one rank: there is nothing to move. */
#include "comm/comm_impl.h"

static kr_moved open_self(const kr_engine_setup *setup, void **self, int *rank, int *ranks, char *text)
{
    (void)setup;
    (void)text;
    *self = NULL;
    *rank = 0;
    *ranks = 1;
    return KR_MOVED_ALL;
}

static kr_moved move_nothing(void *self, kr_moves *moves)
{
    (void)self;
    (void)moves;
    return KR_MOVED_ALL;
}

static void close_self(void *self, bool is_broken)
{
    (void)self;
    (void)is_broken;
}

const kr_engine *kr_engine_self(void)
{
    static const kr_engine engine = {
        .version = KR_ENGINE_VERSION, .name = "self", .open = open_self, .move = move_nothing, .close = close_self
    };
    return &engine;
}
