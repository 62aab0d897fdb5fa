// Pixels between four others.
#pragma once
#include "convert.cuh"

// C channels of a pixel between four others, of which those that are not there are `fill`.
template <typename In, typename Out, int C>
__device__ __forceinline__ void mixed(const In* nw, const In* ne, const In* sw, const In* se, const bool* there, float fill,
                                      float fx, float fy, Out* out) {
    float a[C], b[C], d[C], e[C];
    #pragma unroll
    for (int c = 0; c < C; ++c) {
        a[c] = there[0] ? static_cast<float>(plain(nw[c])) : fill;
        b[c] = there[1] ? static_cast<float>(plain(ne[c])) : fill;
        d[c] = there[2] ? static_cast<float>(plain(sw[c])) : fill;
        e[c] = there[3] ? static_cast<float>(plain(se[c])) : fill;
    }
    #pragma unroll
    for (int c = 0; c < C; ++c) {
        const float upper = a[c] + (b[c] - a[c]) * fx, lower = d[c] + (e[c] - d[c]) * fx;
        out[c] = saturate<Out>(upper + (lower - upper) * fy);
    }
}
