// SPDX-License-Identifier: MIT
#include <unitscale/tensor/fill.hpp>
#include <unitscale/tensor/minifloat_traits.hpp>

#include "support/catch.hpp"

#include <limits>
#include <sstream>

using namespace unitscale;

namespace {

using E4M3 = Minifloat<e4m3>;
using Codes = Eigen::Array<E4M3, Eigen::Dynamic, 1>;

}  // namespace

TEST_CASE("Eigen knows the range and precision of minifloats", "[tensor]") {
    using Traits = Eigen::NumTraits<E4M3>;
    CHECK(static_cast<float>(Traits::highest()) == 448.0f);
    CHECK(static_cast<float>(Traits::lowest()) == -448.0f);
    CHECK(static_cast<float>(Traits::epsilon()) == 0.125f);
    CHECK(static_cast<float>(Traits::dummy_precision()) == 0.125f);
    CHECK(Traits::digits10() == std::numeric_limits<E4M3>::digits10);
    CHECK(static_cast<int>(Traits::IsInteger) == 0);
    CHECK(static_cast<int>(Traits::IsSigned) == 1);
    CHECK(static_cast<int>(Eigen::NumTraits<Minifloat<e8m0>>::IsSigned) == 0);
}

TEST_CASE("Eigen arrays of minifloats convert from and to float", "[tensor]") {
    Eigen::ArrayXf x(5);
    x << 0.3f, -1.0f, 17.0f, 1000.0f, 0.0f;
    const Codes codes = x.cast<E4M3>();
    const Eigen::ArrayXf back = codes.cast<float>();
    for (Eigen::Index i = 0; i < x.size(); ++i) CHECK(back[i] == quantise(e4m3, x[i]));
    CHECK(back[2] == 16.0f);
    CHECK(codes[1].bits() == 0xB8);
}

TEST_CASE("Eigen maps over a tensor of minifloats find extremes and sums", "[tensor]") {
    Tensor<E4M3> tensor = normal<E4M3>({64}, {1, 2});
    tensor(10) = E4M3(9.0f);
    tensor(20) = E4M3(-9.0f);
    const ConstArrayMap<E4M3> map(tensor.data(), 64);
    CHECK(static_cast<float>(map.maxCoeff()) == 9.0f);
    CHECK(static_cast<float>(map.minCoeff()) == -9.0f);
    float exact = 0.0f;
    for (const E4M3 v : tensor.span()) exact += static_cast<float>(v);
    CHECK(map.cast<float>().sum() == Approx(exact).epsilon(1e-6));
    ArrayMap<E4M3>(tensor.data(), 64).setConstant(E4M3(0.5f));
    CHECK(map.cast<float>().sum() == 32.0f);
    CHECK(static_cast<float>(map.head(8).sum()) == 4.0f);
    CHECK(static_cast<float>(map.sum()) == 8.0f);  // rounded each time: 8 + 0.5 is 8 again
    CHECK((map.cast<float>() == 0.5f).all());
}

TEST_CASE("sums and products of Eigen arrays round to the format each time", "[tensor]") {
    Codes x(3), y(3);
    x << E4M3(16.0f), E4M3(1.5f), E4M3(400.0f);
    y << E4M3(1.0f), E4M3(1.25f), E4M3(400.0f);
    const Codes sum = x + y, product = x * y, negative = -x;
    CHECK(static_cast<float>(sum[0]) == 16.0f);
    CHECK(static_cast<float>(sum[1]) == 2.75f);
    CHECK(static_cast<float>(sum[2]) == 448.0f);
    CHECK(static_cast<float>(product[1]) == 1.875f);
    CHECK(static_cast<float>(negative[1]) == -1.5f);
    CHECK(static_cast<float>(x.prod()) == 448.0f);
    CHECK((x.max(y) == x).all());
    CHECK((y < x).count() == 2);
}

TEST_CASE("Eigen prints minifloats, and matrices of them are filled and transposed", "[tensor]") {
    Eigen::Matrix<E4M3, 2, 2> matrix;
    matrix << E4M3(1.0f), E4M3(-0.5f), E4M3(2.0f), E4M3(448.0f);
    std::ostringstream out;
    out << matrix.transpose();
    CHECK(out.str() == "   1    2\n-0.5  448");
    CHECK(static_cast<float>((matrix.cast<float>() * matrix.cast<float>())(0, 0)) == 0.0f);
    CHECK(Eigen::Matrix<E4M3, 2, 2>::Zero().cast<float>().isZero());
}
