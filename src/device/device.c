/* Views of tensors and the names of the arithmetic modes. Not here: any device (cpu/cpu.c). */
#include "device.h"

tensor tensor_of(void *p, dtype type, int ndim, const int32_t *dim) {
    tensor t = {.p = p, .type = (uint8_t)type, .ndim = (uint8_t)ndim};
    int64_t stride = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        t.dim[i] = dim[i];
        t.stride[i] = stride;
        stride *= dim[i];
    }
    return t;
}

static void *tensor_at(tensor t, int64_t elements) {
    return (uint8_t *)t.p + elements * (int64_t)dtype_bytes(t.type);
}

tensor tensor_rows(tensor t, int32_t from, int32_t n) {
    t.p = tensor_at(t, from * t.stride[0]);
    t.dim[0] = n;
    return t;
}

tensor tensor_cols(tensor t, int32_t from, int32_t n) {
    t.p = tensor_at(t, from);
    t.dim[t.ndim - 1] = n;
    return t;
}

tensor tensor_shape(tensor t, int ndim, const int32_t *dim) {
    return tensor_of(t.p, t.type, ndim, dim);
}

static const char *const numerics_names[] = {
    [NUM_DEFAULT] = "default", [NUM_F32] = "f32", [NUM_INT8] = "int8", [NUM_STRICT] = "strict"};

bool numerics_parse(str s, numerics *out) {
    for (size_t i = 0; i < COUNT(numerics_names); i++) {
        if (!str_is(s, numerics_names[i])) continue;
        *out = (numerics)i;
        return true;
    }
    return false;
}

const char *numerics_name(numerics n) {
    return numerics_names[n];
}

void device_close(device *d) {
    if (d) d->vt->close(d);
}
