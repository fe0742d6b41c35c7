// SPDX-License-Identifier: MIT
#include <unitscale/train/calibrate.hpp>

#include <unitscale/formats/quantise.hpp>
#include <unitscale/io/json_recipe.hpp>
#include <unitscale/ops/linear.hpp>
#include <unitscale/ops/readout.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

using namespace unitscale;
using train::Calibration;

namespace {

const OperandRule by_tensor{Quantiser{.format = e4m3}, {.source = ScaleSource::amax}};

/// Normal numbers, and one that is far larger.
Tensor<float> with_outlier(float outlier, std::size_t count = 4096) {
    Tensor<float> x({count / 8, 8});
    fill_normal(x, {7, 1}, 1.0);
    x.data()[count / 2] = outlier;
    return x;
}

/// The biases that a method finds for x, shown to a tape in two modules.
template <class T = float>
std::vector<train::ModuleBias> calibrate(const std::vector<Tensor<T>>& samples,
                                         const train::CalibrationOptions& options, int passes = -1) {
    Recipe recipe = recipe_in<T>(find_recipe("fp32"));
    recipe.products = {{.kind = ProductKind::linear}, {.kind = ProductKind::readout}};
    for (ProductRule& product : recipe.products) product.formats.set(OperandSlot::forward_x, by_tensor);
    ScalingState state;
    Tape<T> tape(recipe, state);
    Tensor<T> weight({2, 8});
    fill_normal(weight, {1, 1}, 1.0);
    train::ActivationCalibration<T> calibration(options);
    tape.set_observer(&calibration);
    for (int pass = 0; pass < (passes < 0 ? calibration.passes() : passes); ++pass) {
        for (const Tensor<T>& sample : samples) {
            tape.begin_step({.training = false, .gradients = false});
            const auto scope = tape.scope("layer");
            const Variable<T> x = tape.input(Tensor<T>(sample)), w = tape.input(Tensor<T>(weight));
            static_cast<void>(ops::linear(x, w));
            static_cast<void>(ops::readout(x, w));
        }
        calibration.end_pass();
    }
    return calibration.biases();
}

/// The squared error of rounding all samples with a bias.
double error(const std::vector<Tensor<float>>& samples, const FloatFormat& format, int bias) {
    double sum = 0.0;
    for (const Tensor<float>& sample : samples)
        for (const float x : sample.span()) {
            const auto exact = static_cast<double>(x);
            const double scaled = std::ldexp(exact, bias);
            const auto rounded = static_cast<double>(quantise(format, static_cast<float>(scaled), {}));
            sum += std::pow(std::ldexp(rounded, -bias) - exact, 2);
        }
    return sum;
}

}  // namespace

TEST_CASE("calibration: a percentile of the histogram is the true one or at most 1/32 above it") {
    const Tensor<float> x = with_outlier(300.0f, 4000);
    std::vector<float> sorted;
    train::MagnitudeHistogram histogram;
    for (const float number : x.span()) {
        histogram.add(number);
        sorted.push_back(std::abs(number));
    }
    std::sort(sorted.begin(), sorted.end());
    CHECK(histogram.total() == 4000);
    for (const double percent : {1e-9, 0.5, 10.0, 50.0, 90.0, 99.0, 99.9, 99.99, 100.0}) {
        CAPTURE(percent);
        const double rank = std::max(1.0, std::ceil(percent / 100.0 * 4000.0));
        const float exact = sorted[static_cast<std::size_t>(rank) - 1], found = histogram.percentile(percent);
        CHECK(found >= exact);
        CHECK(found < exact * (1.0f + 1.0f / 32.0f));
    }
    CHECK(train::MagnitudeHistogram().percentile(50.0) == 0.0f);
}

TEST_CASE("calibration: amax leaves every sample in the format, a percentile saturates the rest") {
    const std::vector<Tensor<float>> samples{with_outlier(20.0f), with_outlier(-300.0f), with_outlier(2.0f)};
    for (const FloatFormat& format : {e4m3, e5m2, e2m1}) {
        const auto biases = calibrate(samples, {.format = format});
        REQUIRE(biases.size() == 2);
        CHECK((biases[0].kind == ProductKind::linear && biases[1].kind == ProductKind::readout));
        CHECK((biases[0].path == "layer" && biases[1].path == "layer"));
        CHECK(biases[0].bias == amax_bias(format, 300.0f, 0));
        CHECK(biases[1].bias == biases[0].bias);

        const auto cut = calibrate(samples, {.format = format, .kind = Calibration::percentile, .percentile = 99.0});
        CHECK(cut[0].bias > biases[0].bias + 4);  // of normal numbers one in a hundred exceeds 2.6
        CHECK(cut[0].bias == amax_bias(format, 2.6f, 0));
        CHECK(calibrate(samples, {.format = format, .kind = Calibration::percentile, .percentile = 100.0})[0].bias ==
              biases[0].bias);
    }
}

TEST_CASE("calibration: mse finds the bias of least squared error") {
    for (const float outlier : {3.0f, 30.0f, 100.0f})
        for (const FloatFormat& format : {e4m3, e3m2, e2m1, e5m2}) {
            const std::vector<Tensor<float>> samples{with_outlier(outlier), with_outlier(1.0f)};
            CAPTURE(outlier, name(format));
            const int found = calibrate(samples, {.format = format, .kind = Calibration::mse})[0].bias;
            float amax = 0.0f;
            for (const Tensor<float>& sample : samples)
                for (const float x : sample.span()) amax = std::max(amax, std::abs(x));
            const int start = amax_bias(format, amax, 0);
            int best = start - 1;
            for (int bias = start - 1; bias <= start + 6; ++bias)
                if (error(samples, format, bias) < error(samples, format, best)) best = bias;
            CHECK(found == best);
        }
    // Numbers that every bias rounds exactly: the lowest one, which saturates least.
    const std::vector<Tensor<float>> ones{Tensor<float>({2, 8}, std::vector<float>(16, 1.0f))};
    CHECK(calibrate(ones, {.format = e4m3, .kind = Calibration::mse})[0].bias == amax_bias(e4m3, 1.0f, 0) - 1);
}

TEST_CASE("calibration: 16-bit elements have the biases of their numbers") {
    Tensor<float> x({4, 8});
    fill_normal(x, {3, 1}, 1.0);
    for (float& number : x.span()) number = static_cast<float>(static_cast<Half>(number));
    Tensor<Half> half({4, 8});
    for (std::size_t i = 0; i < x.size(); ++i) half.data()[i] = static_cast<Half>(x.data()[i]);
    for (const Calibration kind : {Calibration::amax, Calibration::percentile, Calibration::mse}) {
        const train::CalibrationOptions options{.format = e3m2, .kind = kind, .percentile = 90.0};
        CHECK(calibrate<Half>({half}, options)[0].bias == calibrate<float>({x}, options)[0].bias);
    }
}

TEST_CASE("calibration: a model's recipe gets one constant bias for each linear layer") {
    constexpr nn::DecoderConfig config{.vocabulary = 40, .width = 32, .depth = 2, .heads = 2, .length = 16};
    Recipe recipe = find_recipe("fp8-amax");
    test::LanguageModel<float> plain(recipe, config, 3);
    Tensor<std::int32_t> ids({4, 16});
    for (std::size_t i = 0; i < ids.size(); ++i) ids.data()[i] = static_cast<std::int32_t>(i * i * 7 % 40);
    const auto run = [&](test::LanguageModel<float>& model) {
        model.tape.begin_step({.training = false, .gradients = false});
        const Variable<float> out = model.decoder(model.tape, ids);
        return std::vector<float>(out.value().span().begin(), out.value().span().end());
    };
    static_cast<void>(run(plain));
    recipe = train::with_forward_rules(plain.recipe, ProductKind::linear, {.activation = by_tensor}, plain.state);
    test::LanguageModel<float> model(recipe, config, 3);
    const std::vector<float> by_amax = run(model);
    const Recipe calibrated =
        train::calibrated_recipe(model.tape, {.format = e4m3}, 1, [&] { static_cast<void>(run(model)); });
    CHECK(calibrated.products.size() > recipe.products.size());

    // On the samples themselves the biases are those of the largest magnitudes, so the logits are, too.
    test::LanguageModel<float> constant(calibrated, config, 3);
    CHECK(run(constant) == by_amax);
    std::size_t linear = 0;
    for (const ScalingState::Product& product : constant.state.products()) {
        const OperandRule rule = product.rule(OperandSlot::forward_x);
        if (product.kind != ProductKind::linear) continue;
        ++linear;
        CHECK(rule.scale.source == ScaleSource::constant);
        CHECK(rule.scale.bias == model.state.last_bias(product.site, operand_place(OperandSlot::forward_x)));
        CHECK(product.rule(OperandSlot::forward_w) ==
              recipe.formats(ProductKind::linear, "").rule(OperandSlot::forward_w));
    }
    CHECK(linear >= 8);
    CHECK(io::recipe_to_json(io::recipe_from_json(io::recipe_to_json(calibrated))) == io::recipe_to_json(calibrated));
}

TEST_CASE("calibration: errors") {
    for (const double percent : {0.0, -1.0, 100.1, std::numeric_limits<double>::quiet_NaN()})
        CHECK_THROWS_WITH(train::ActivationCalibration<float>({.percentile = percent}),
                          Catch::Contains("calibration: percentile is ") &&
                              Catch::Contains("; expected a number above 0, at most 100"));
    CHECK_THROWS_WITH(train::ActivationCalibration<float>({}).biases(),
                      "calibration: no linear layer has shown activations; expected a recipe that rounds them");
    Tensor<float> broken({1, 8});
    fill_normal(broken, {1, 1}, 1.0);
    broken.data()[3] = std::numeric_limits<float>::infinity();
    CHECK_THROWS_WITH(calibrate<float>({broken}, {}),
                      "calibration: activations of layer reach inf; expected finite ones");
    CHECK_THROWS_WITH(calibrate<float>({with_outlier(2.0f)}, {.kind = Calibration::mse}, 1),
                      "calibration: mse needs the samples twice; they were run 1 times");
    const ScalingState state;
    CHECK_THROWS_WITH(train::with_constant_biases(find_recipe("fp32"), {{.path = "layer"}}, e4m3, state),
                      "calibration: module layer has no product of kind linear");
}
