/* Elementary functions on sixteen lanes: one sequence of operations for every instruction level, so one result.
 *
 * Include after a v16_*.h. Polynomials are our own minimax fits in the relative error (tools in docs/devices.md say
 * how); the measured errors against double are bounds of tests/op/vec_test.c. NaN goes through. */
#pragma once

/* n = x/ln 2 to the nearest integer, *r the rest in ±ln 2/2; valid for |x| < 2^21. */
V_INL vi exp_split(vf x, vf *r) {
    vf magic = v_set1(12582912.0f); /* 1.5·2^23: adding it leaves the integer in the low bits */
    vf t = v_fma(x, v_set1(0x1.715476p+0f), magic);
    vf n = v_sub(t, magic);
    vf y = v_fnma(n, v_set1(0x1.62e4p-1f), x); /* ln 2 in two parts, the first with few bits */
    *r = v_fnma(n, v_set1(0x1.7f7d1cp-20f), y);
    return vi_sub(v_bits(t), vi_set1(0x4b400000));
}
/* e^r for |r| <= ln 2/2 */
V_INL vf exp_poly(vf r) {
    vf p = v_set1(0x1.9f08acp-13f);
    p = v_fma(p, r, v_set1(0x1.6d8cf6p-10f));
    p = v_fma(p, r, v_set1(0x1.11127p-7f));
    p = v_fma(p, r, v_set1(0x1.55548ep-5f));
    p = v_fma(p, r, v_set1(0x1.555554p-3f));
    p = v_fma(p, r, v_set1(0.5f));
    return v_add(v_fma(v_mul(r, r), p, r), v_set1(1.0f));
}
/* e^x for x <= 0; below −87 it is 0 (attention: no subnormal numbers, which cost a hundred cycles each). */
V_INL vf v_exp_neg(vf x) {
    vf r;
    vm gone = v_lt(x, v_set1(-87.0f));
    vi n = exp_split(v_max(v_set1(-88.0f), x), &r);
    vf e = v_float(vi_add(v_bits(exp_poly(r)), vi_shl23(n)));
    return v_sel(gone, v_zero(), v_sel(v_nan(x), x, e));
}
/* e^x: infinity above 88.73, subnormal below −87.34, 0 below −104. The power of two is applied in two halves. */
V_INL vf v_exp(vf x) {
    vf r;
    x = v_max(v_set1(-105.0f), v_min(v_set1(90.0f), x));
    vi n = exp_split(x, &r), h = vi_half(n), bias = vi_set1(127);
    vf e = v_mul(exp_poly(r), v_float(vi_shl23(vi_add(h, bias))));
    return v_sel(v_nan(x), x, v_mul(e, v_float(vi_shl23(vi_add(vi_sub(n, h), bias)))));
}
V_INL vf v_sigmoid(vf x) {
    vf one = v_set1(1.0f);
    return v_div(one, v_add(one, v_exp(v_sub(v_zero(), x))));
}
/* ln(1 + e^x) = max(x, 0) + ln(1 + u), u = e^-|x|; and ln(1 + u) = 2 artanh(u / (2 + u)), whose series in the square
 * (at most 1/9) is cut after nine terms. */
V_INL vf v_softplus(vf x) {
    vf u = v_exp_neg(v_sub(v_zero(), v_abs(x)));
    vf s = v_div(u, v_add(u, v_set1(2.0f))), z = v_mul(s, s), p = v_set1(1.0f / 17);
    for (int i = 15; i >= 1; i -= 2) p = v_fma(p, z, v_set1(1.0f / (float)i));
    return v_fma(v_add(s, s), p, v_max(v_zero(), x));
}
V_INL vf v_tanh(vf x) {
    vf a = v_abs(x), z = v_mul(x, x), one = v_set1(1.0f);
    vf p = v_set1(0.0021429588f);
    p = v_fma(p, z, v_set1(-0.008177395f));
    p = v_fma(p, z, v_set1(0.0217007f));
    p = v_fma(p, z, v_set1(-0.053946763f));
    p = v_fma(p, z, v_set1(0.13333206f));
    p = v_fma(p, z, v_set1(-0.3333333f));
    vf near = v_fma(v_mul(p, z), x, x); /* |x| < 0.625 */
    vf far = v_sub(one, v_div(v_set1(2.0f), v_add(v_exp(v_add(a, a)), one)));
    return v_sel(v_lt(a, v_set1(0.625f)), near, v_copysign(far, x));
}
V_INL vf v_erf(vf x) {
    vf a = v_abs(x), z = v_mul(x, x), one = v_set1(1.0f);
    vf p = v_set1(8.382388e-05f);
    p = v_fma(p, z, v_set1(-0.00081455969f));
    p = v_fma(p, z, v_set1(0.005201286f));
    p = v_fma(p, z, v_set1(-0.0268595f));
    p = v_fma(p, z, v_set1(0.11283697f));
    p = v_fma(p, z, v_set1(-0.37612634f));
    p = v_fma(p, z, v_set1(0.12837917f));
    vf near = v_fma(p, x, x);                                    /* |x| < 0.92 */
    vf b = v_min(v_set1(4.0f), a), q = v_set1(-5.22321497e-07f); /* ln erfc(b) */
    q = v_fma(q, b, v_set1(-1.43055629e-05f));
    q = v_fma(q, b, v_set1(0.000396674485f));
    q = v_fma(q, b, v_set1(-0.00405339669f));
    q = v_fma(q, b, v_set1(0.0248951091f));
    q = v_fma(q, b, v_set1(-0.108011836f));
    q = v_fma(q, b, v_set1(-0.633543554f));
    q = v_fma(q, b, v_set1(-1.12943408f));
    q = v_fma(q, b, v_set1(0.000160398217f));
    vf far = v_copysign(v_sub(one, v_exp(q)), x);
    return v_sel(v_lt(a, v_set1(0.92f)), near, far);
}

V_INL vf act_silu(vf x) {
    return v_div(x, v_add(v_set1(1.0f), v_exp(v_sub(v_zero(), x))));
}
V_INL vf act_gelu_erf(vf x) {
    return v_mul(v_mul(v_set1(0.5f), x), v_add(v_set1(1.0f), v_erf(v_mul(x, v_set1(0.70710678f)))));
}
V_INL vf act_gelu_tanh(vf x) {
    vf inner = v_mul(v_set1(0.7978845608f), v_fma(v_mul(v_mul(v_set1(0.044715f), x), x), x, x));
    return v_mul(v_mul(v_set1(0.5f), x), v_add(v_set1(1.0f), v_tanh(inner)));
}
V_INL vf act_relu(vf x) {
    return v_max(v_zero(), x);
}
