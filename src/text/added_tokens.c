/* added_tokens.c - the automaton over the reversed added tokens, and searching with it window by window. */
#include "text/added_tokens.h"

#include "base/hash.h"

/* ---- building ---- */

static uint64_t edge_slot(const kr_matcher *m, uint32_t from)
{
    uint64_t slot = kr_hash_word(m->seed, from) & m->mask;
    while (m->edges[slot].to != 0 && m->edges[slot].from != from) slot = (slot + 1) & m->mask;
    return slot;
}

/* The next state for a byte; 0: none. */
static uint32_t step(const kr_matcher *m, uint32_t state, unsigned char byte)
{
    return m->edges[edge_slot(m, state << 8 | byte)].to;
}

static bool allocate(kr_matcher *m, kr_arena *arena, size_t states)
{
    uint64_t slots = 16;
    while (slots < 2 * (uint64_t)states) slots *= 2;
    m->mask = slots - 1;
    m->edges = kr_arena_alloc(arena, slots * sizeof *m->edges);
    m->fallback = kr_arena_alloc(arena, states * sizeof *m->fallback);
    m->found = kr_arena_alloc(arena, states * sizeof *m->found);
    if (!m->edges || !m->fallback || !m->found) return false;
    memset(m->edges, 0, slots * sizeof *m->edges);
    memset(m->fallback, 0, states * sizeof *m->fallback);
    memset(m->found, 0, states * sizeof *m->found);
    return true;
}

/* Reads the pattern from its end; states are numbered in order of creation, parents before children. */
static uint32_t add_pattern(kr_matcher *m, const kr_added_token *token, int64_t number, uint32_t nstates)
{
    uint32_t state = 0;
    for (size_t i = token->pattern_bytes; i-- > 0;) {
        const uint32_t from = state << 8 | (unsigned char)token->pattern[i];
        kr_edge *edge = &m->edges[edge_slot(m, from)];
        if (edge->to == 0) *edge = (kr_edge){ from, nstates++ };
        state = edge->to;
    }
    if (m->found[state] == 0) m->found[state] = (uint32_t)number + 1;
    m->is_last[(unsigned char)token->pattern[token->pattern_bytes - 1]] = true;
    if (token->pattern_bytes > m->longest) m->longest = token->pattern_bytes;
    m->npatterns++;
    return nstates;
}

/* The state after `state` for `byte`, following fallbacks as needed. */
static uint32_t go(const kr_matcher *m, uint32_t state, unsigned char byte, uint64_t *work)
{
    for (;;) {
        const uint32_t to = step(m, state, byte);
        ++*work;
        if (to != 0 || state == 0) return to;
        state = m->fallback[state];
    }
}

/* Sets the fallbacks in order of depth: `ordered` are the edges, sorted by the depth of their target. */
static void link_states(kr_matcher *m, const kr_edge *ordered, uint32_t count)
{
    uint64_t work = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t parent = ordered[i].from >> 8, state = ordered[i].to;
        const unsigned char byte = (unsigned char)ordered[i].from;
        m->fallback[state] = parent == 0 ? 0 : go(m, m->fallback[parent], byte, &work);
        if (m->found[state] == 0) m->found[state] = m->found[m->fallback[state]];
    }
}

/* Counting sort of the edges by depth. `depth` and `begin` have capacity for all states. */
static void order_edges(const kr_matcher *m, kr_edge *by_state, kr_edge *ordered, uint32_t *depth, uint32_t *begin,
                        uint32_t nstates)
{
    for (uint64_t i = 0; i <= m->mask; i++)
        if (m->edges[i].to != 0) by_state[m->edges[i].to] = m->edges[i];
    depth[0] = 0;
    memset(begin, 0, (nstates + 1) * sizeof *begin);
    for (uint32_t state = 1; state < nstates; state++) { /* a parent's number is lower */
        depth[state] = depth[by_state[state].from >> 8] + 1;
        begin[depth[state] + 1]++;
    }
    for (uint32_t d = 0; d < nstates; d++) begin[d + 1] += begin[d];
    for (uint32_t state = 1; state < nstates; state++) ordered[begin[depth[state]]++] = by_state[state];
}

bool kr_matcher_init(kr_matcher *m, kr_arena *arena, uint64_t seed, const kr_added_token *tokens, int64_t count,
                     bool is_normalized)
{
    *m = (kr_matcher){ .seed = seed };
    size_t states = 1;
    for (int64_t i = 0; i < count; i++)
        if (tokens[i].is_normalized == is_normalized) states += tokens[i].pattern_bytes;
    if (states == 1) return true;
    if (!allocate(m, arena, states)) return false;
    uint32_t nstates = 1;
    for (int64_t i = 0; i < count; i++)
        if (tokens[i].is_normalized == is_normalized) nstates = add_pattern(m, &tokens[i], i, nstates);

    const kr_arena_mark mark = kr_arena_mark_now(arena);
    kr_edge *by_state = kr_arena_alloc(arena, nstates * sizeof *by_state);
    kr_edge *ordered = kr_arena_alloc(arena, nstates * sizeof *ordered);
    uint32_t *depth = kr_arena_alloc(arena, nstates * sizeof *depth);
    uint32_t *begin = kr_arena_alloc(arena, (nstates + 2) * sizeof *begin);
    const bool is_allocated = by_state && ordered && depth && begin;
    if (is_allocated) {
        order_edges(m, by_state, ordered, depth, begin, nstates);
        link_states(m, ordered, nstates - 1);
    }
    kr_arena_release(arena, mark);
    return is_allocated;
}

/* ---- searching ---- */

void kr_search_begin(kr_search *s, const kr_matcher *matcher, const char *text, size_t bytes, kr_buffer *hits,
                     uint64_t *work)
{
    *s = (kr_search){ matcher, (const unsigned char *)text, bytes, 0, 0, hits, work };
    hits->bytes = 0;
}

/* All hits from window_begin up to window_end. A token that begins there ends at most `longest` bytes later. */
static bool search_window(kr_search *s, size_t begin)
{
    enum { WINDOW = 1 << 15 };
    const kr_matcher *m = s->matcher;
    const size_t window = m->longest > WINDOW ? m->longest : WINDOW;
    s->window_begin = begin;
    s->window_end = s->bytes - begin > window ? begin + window : s->bytes;
    s->hits->bytes = 0;
    const size_t end = s->bytes - s->window_end > m->longest ? s->window_end + m->longest : s->bytes;
    uint32_t state = 0;
    for (size_t at = end; at-- > begin;) {
        if (state == 0 && !m->is_last[s->text[at]]) continue;
        state = go(m, state, s->text[at], s->work);
        if (m->found[state] == 0 || at >= s->window_end) continue;
        const kr_hit hit = { at, (int64_t)m->found[state] - 1 };
        if (!kr_buffer_put(s->hits, &hit, sizeof hit)) return false;
    }
    *s->work += end - begin;
    return true;
}

int kr_search_next(kr_search *s, size_t from, kr_hit *hit)
{
    if (s->matcher->npatterns == 0) return 0;
    for (;;) {
        while (s->hits->bytes > 0) {
            memcpy(hit, s->hits->data + s->hits->bytes - sizeof *hit, sizeof *hit);
            if (hit->at >= from) return 1;
            s->hits->bytes -= sizeof *hit;
        }
        if (s->window_end == s->bytes) return 0;
        if (!search_window(s, s->window_end > from ? s->window_end : from)) return -1;
    }
}
