/* sum_order.h - the order of additions over ranks: kr_sum_order of <krait/comm.h>. */
#ifndef KR_COMM_SUM_ORDER_H
#define KR_COMM_SUM_ORDER_H

#include <krait/tensor.h>

/* slots[0] [n] = the ordered sum of slots[0 .. nslots); the other slots are overwritten. f32 or f64. */
void kr_sum_slots(kr_dtype dtype, void *const *slots, int nslots, int64_t n);

#endif
