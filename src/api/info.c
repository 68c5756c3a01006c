/* info.c - kr_info_text: texts of several modules about the machine and the library. */
#include "base/cpu.h"
#include "device/device.h"
#include "kernels/select.h"

#include <krait/ctx.h>

size_t kr_info_text(kr_info info, char *text, size_t bytes)
{
    if (!text) bytes = 0;
    switch (info) {
    case KR_INFO_CPU_FEATURES: return kr_cpu_features_write(text, bytes);
    case KR_INFO_ISAS: return kr_isas_write(text, bytes);
    case KR_INFO_DEVICES: return kr_devices_write(text, bytes);
    case KR_INFO_KERNELS: return kr_kernels_write(text, bytes);
    }
    if (bytes) text[0] = '\0';
    return 0;
}
