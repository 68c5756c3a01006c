/* pretokenize.c - runs a span of text through the stages of the pre-tokenizer: each splits its input into pieces and
 * passes them on one by one, so that only the longest piece is ever in memory. */
#include "text/byte_level.h"
#include "text/tokenizer_impl.h"
#include "io/utf8.h"

typedef struct piece {
    const char *text;
    size_t bytes;
    bool is_joined; /* to a preceding invalid byte: no space is inserted between */
} piece;

static bool run_stage(kr_encoder *e, int stage, piece p);

/* ---- splitting ---- */

/* A match, or the text between two of them. */
typedef struct part {
    size_t begin, end;
    bool is_match;
} part;

typedef struct splitter {
    kr_encoder *e;
    int stage; /* the one that splits */
    piece whole;
    bool has_last; /* a part that may still grow; is_match is that of the text added to it last */
    part last;
} splitter;

static bool hand_on(splitter *s, size_t begin, size_t end)
{
    if (begin == end) return true;
    const piece p = { s->whole.text + begin, end - begin, begin == 0 && s->whole.is_joined };
    return run_stage(s->e, s->stage + 1, p);
}

static bool flush(splitter *s)
{
    const bool had_last = s->has_last;
    s->has_last = false;
    return !had_last || hand_on(s, s->last.begin, s->last.end);
}

/* Does the new part belong to the last one? */
static bool joins_last(const splitter *s, kr_split_behavior behavior, bool is_match)
{
    if (!s->has_last) return false;
    const bool was_match = s->last.is_match;
    return behavior == KR_SPLIT_CONTIGUOUS             ? is_match == was_match
           : behavior == KR_SPLIT_MERGED_WITH_PREVIOUS ? is_match && !was_match
           : behavior == KR_SPLIT_MERGED_WITH_NEXT     ? was_match && !is_match
                                                       : false;
}

static bool take_part(splitter *s, part p)
{
    const kr_stage *stage = &s->e->tok->stages[s->stage];
    p.is_match ^= stage->is_inverted;
    if (stage->behavior == KR_SPLIT_REMOVED) return p.is_match || hand_on(s, p.begin, p.end);
    if (stage->behavior == KR_SPLIT_ISOLATED) return hand_on(s, p.begin, p.end);
    if (joins_last(s, stage->behavior, p.is_match)) {
        s->last.end = p.end;
        s->last.is_match = p.is_match;
        return true;
    }
    if (!flush(s)) return false;
    s->has_last = true;
    s->last = p;
    return true;
}

/* As kr_regex_find. */
static int find_literal(const kr_stage *stage, const char *text, size_t bytes, size_t from, kr_match *match)
{
    const size_t length = stage->literal_bytes;
    for (size_t at = from; bytes - at >= length;) {
        const char *found = length == 0 ? text + at : memchr(text + at, stage->literal[0], bytes - at - length + 1);
        if (!found) return 0;
        at = (size_t)(found - text);
        if (memcmp(found, stage->literal, length) == 0) {
            *match = (kr_match){ at, at + length };
            return 1;
        }
        at++;
    }
    return 0;
}

static size_t char_bytes(const piece *p, size_t at)
{
    return at < p->bytes ? kr_utf8_length((const unsigned char *)p->text + at, p->bytes - at) : 1;
}

/* An empty match directly after the previous one does not count; the search continues one character later. */
static bool split(kr_encoder *e, int stage, piece p)
{
    const kr_stage *how = &e->tok->stages[stage];
    splitter s = { .e = e, .stage = stage, .whole = p };
    size_t done = 0, from = 0;
    bool has_matched = false;
    while (from <= p.bytes) {
        kr_match m;
        const int found = how->regex ? kr_regex_find(how->regex, p.text, p.bytes, from, &m)
                                     : find_literal(how, p.text, p.bytes, from, &m);
        e->work++;
        if (found < 0) return false;
        if (found == 0) break;
        if (m.begin == m.end && has_matched && m.end == done) {
            from += char_bytes(&p, from);
            continue;
        }
        if (m.begin > done && !take_part(&s, (part){ done, m.begin, false })) return false;
        if (!take_part(&s, (part){ m.begin, m.end, true })) return false;
        done = from = m.end;
        has_matched = true;
    }
    if (done < p.bytes && !take_part(&s, (part){ done, p.bytes, false })) return false;
    return flush(&s);
}

/* ---- the others ---- */

static bool add_space(kr_encoder *e, int stage, piece p)
{
    if (p.is_joined || p.text[0] == ' ') return run_stage(e, stage + 1, p);
    kr_buffer *text = &e->stage_texts[stage];
    text->bytes = 0;
    if (!kr_buffer_put(text, " ", 1) || !kr_buffer_put(text, p.text, p.bytes)) return false;
    return run_stage(e, stage + 1, (piece){ text->data, text->bytes, false });
}

static bool spell(kr_encoder *e, int stage, piece p)
{
    kr_buffer *text = &e->stage_texts[stage];
    text->bytes = 0;
    if (!kr_buffer_reserve(text, 2 * p.bytes)) return false;
    char *end = text->data;
    for (size_t i = 0; i < p.bytes; i++) end = kr_utf8_write(end, kr_byte_level_char((unsigned char)p.text[i]));
    text->bytes = (size_t)(end - text->data);
    return run_stage(e, stage + 1, (piece){ text->data, text->bytes, p.is_joined });
}

/* The bytes that a piece spells in the byte-level alphabet. */
static bool finish_spelt(kr_encoder *e, piece p)
{
    kr_buffer *bytes = &e->stage_texts[KR_MAX_STAGES];
    bytes->bytes = 0;
    if (!kr_buffer_reserve(bytes, p.bytes)) return false;
    for (size_t at = 0; at < p.bytes;) {
        const size_t length = char_bytes(&p, at);
        const uint32_t c = kr_utf8_read((const unsigned char *)p.text + at, length);
        bytes->data[bytes->bytes++] = (char)kr_byte_level_byte(c);
        at += length;
    }
    return kr_bpe(e, bytes->data, bytes->bytes);
}

/* Recurses once for each stage. */
static bool run_stage(kr_encoder *e, int stage, piece p)
{
    if (stage == e->tok->nstages) return e->tok->is_spelt ? finish_spelt(e, p) : kr_bpe(e, p.text, p.bytes);
    switch (e->tok->stages[stage].kind) {
    case KR_STAGE_SPLIT: return split(e, stage, p);
    case KR_STAGE_SPACE: return add_space(e, stage, p);
    case KR_STAGE_SPELL: return spell(e, stage, p);
    }
    return false;
}

bool kr_pretokenize(kr_encoder *e, const char *text, size_t bytes, bool is_joined)
{
    return bytes == 0 || run_stage(e, 0, (piece){ text, bytes, is_joined });
}
