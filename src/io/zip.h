/* zip.h - the directory of a zip whose members are stored uncompressed.
 *
 *   [local header, member] ..  directory: [central header] ..  [zip64 end, zip64 locator]  end
 *
 * Sizes and offsets come from the directory; local headers must agree with it.
 */
#ifndef KR_IO_ZIP_H
#define KR_IO_ZIP_H

#include "base/ctx_impl.h"

enum {
    KR_ZIP_LOCAL_BYTES = 30,   /* of a local header, without name and extra fields */
    KR_ZIP_CENTRAL_BYTES = 46, /* of a central header, without name, extra fields and comment */
    KR_ZIP_END_BYTES = 22,
    KR_ZIP_END64_BYTES = 56,
    KR_ZIP_LOCATOR_BYTES = 20,
    KR_ZIP_EXTRA64 = 1 /* the extra field for values that exceed 32 bits */
};

#define KR_ZIP_LOCAL UINT32_C(0x04034b50) /* signatures of the records */
#define KR_ZIP_CENTRAL UINT32_C(0x02014b50)
#define KR_ZIP_END UINT32_C(0x06054b50)
#define KR_ZIP_END64 UINT32_C(0x06064b50)
#define KR_ZIP_LOCATOR UINT32_C(0x07064b50)
#define KR_ZIP_IS_64 UINT32_C(0xFFFFFFFF) /* in a field of 32 bits: see the extra field */

/* Names are not zero-terminated and contain no zero byte. */
typedef struct kr_zip_member {
    const char *name;
    size_t name_length;
    const unsigned char *data;
    size_t bytes;
    uint32_t crc;
    uint64_t header; /* offset of its local header in the file */
    int64_t number;  /* its index in members */
} kr_zip_member;

typedef struct kr_zip {
    int64_t count;
    kr_zip_member *members; /* in the directory's order */
    const void **by_name;   /* the same (kr_zip_member) in the order of their names */
} kr_zip;

/* False with the context's error set; memory from the arena. */
bool kr_zip_read(kr_zip *zip, kr_ctx *ctx, kr_arena *arena, const unsigned char *file, size_t bytes);

/* NULL: no such member. */
const kr_zip_member *kr_zip_find(const kr_zip *zip, const char *name, size_t length);

/* Verifies a member's checksum. A checksum of 0 means none: torch has an option not to write them. */
bool kr_zip_check(kr_ctx *ctx, const kr_zip_member *member);

#endif
