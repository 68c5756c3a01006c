/* test_version.c - the version in its three spellings, and the names of the statuses. */
#include "tests/harness.h"

TEST(version_number_is_the_text)
{
    int major = -1, minor = -1, patch = -1;
    CHECK(sscanf(kr_version(), "%d.%d.%d", &major, &minor, &patch) == 3, "version \"%s\"", kr_version());
    CHECK(kr_version_number() == major * 10000 + minor * 100 + patch, "%d, but %s", kr_version_number(), kr_version());
    CHECK(kr_version_number() == KR_VERSION_NUMBER, "the header is %d", KR_VERSION_NUMBER);
}

TEST(statuses_have_names)
{
    CHECK(strcmp(kr_status_name(KR_OK), "ok") == 0 && strcmp(kr_status_name(KR_ERR_INTERNAL), "internal") == 0 &&
              strcmp(kr_status_name(KR_END), "end") == 0,
          "names");
    CHECK(KR_END == 12 && strcmp(kr_status_name((kr_status)13), "?") == 0, "statuses are appended");
}
