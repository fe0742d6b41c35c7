// SPDX-License-Identifier: MIT
#include "product_peers.hpp"

#include <oneapi/dnnl/dnnl.hpp>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include <memory>
#include <unordered_map>

namespace unitscale::bench {

Product onednn_product(const Problem& p, const float* a, const float* b, float* c, int threads, bool bf16) {
    using dnnl::memory;
    using Tag = memory::format_tag;
    using Type = memory::data_type;
    const auto type = bf16 ? Type::bf16 : Type::f32;
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    dnnl::stream stream(engine);
    const memory::dims a_dims{p.batch, p.m, p.k}, b_dims{p.batch, p.k, p.n}, c_dims{p.batch, p.m, p.n};
    const Tag a_tag = p.a_transposed ? Tag::acb : Tag::abc, b_tag = p.b_transposed ? Tag::acb : Tag::abc;
    const memory::desc a_desc(a_dims, type, a_tag), b_desc(b_dims, type, b_tag), c_desc(c_dims, Type::f32, Tag::abc);
#if defined(_OPENMP)
    omp_set_num_threads(threads);  // a primitive is made for this number of threads
#endif
    dnnl::matmul primitive;
    try {
        primitive = dnnl::matmul({{a_desc, b_desc, c_desc}, engine});
    } catch (const dnnl::error& error) {
        if (error.status == dnnl_unimplemented) return {};
        throw;
    }

    const auto operand = [&](const float* data, const memory::dims& dims, const memory::desc& desc, Tag tag) {
        memory from({dims, Type::f32, tag}, engine, const_cast<float*>(data));
        if (!bf16) return from;
        memory to(desc, engine);
        dnnl::reorder(from, to).execute(stream, from, to);
        return to;
    };
    const std::unordered_map<int, memory> arguments{{DNNL_ARG_SRC, operand(a, a_dims, a_desc, a_tag)},
                                                    {DNNL_ARG_WEIGHTS, operand(b, b_dims, b_desc, b_tag)},
                                                    {DNNL_ARG_DST, memory(c_desc, engine, c)}};
    stream.wait();
    return [=]() mutable {
#if defined(_OPENMP)
        omp_set_num_threads(threads);
#endif
        primitive.execute(stream, arguments);
        stream.wait();
    };
}

const char* onednn_isa() {
    switch (dnnl::get_effective_cpu_isa()) {
        case dnnl::cpu_isa::avx2:
            return "avx2";
        case dnnl::cpu_isa::avx512_core:
            return "avx512_core";
        case dnnl::cpu_isa::avx512_core_vnni:
            return "avx512_core_vnni";
        case dnnl::cpu_isa::avx512_core_bf16:
            return "avx512_core_bf16";
        case dnnl::cpu_isa::avx512_core_amx:
            return "avx512_core_amx";
        default:
            return "another";
    }
}

}  // namespace unitscale::bench
