// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/operand_statistics.hpp>
#include <unitscale/autograd/observer.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/formats/quantiser.hpp>
#include <unitscale/scaling/operand_rule.hpp>
#include <unitscale/scaling/product_rule.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/scaling/state.hpp>
#include <unitscale/scaling/tensor_scale.hpp>
#include <unitscale/tensor/tensor.hpp>
#include <unitscale/train/quantised_recipe.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

// Calibration: constant biases for the activations of a trained model, measured on samples of its text.
namespace unitscale::train {

/// How a bias is found from the activations x of a module over all samples. max is the format's largest number.
///   amax         floor(log2(max / m)), m the largest |x|: nothing saturates
///   percentile   the same for the p-th percentile of |x|: what is larger saturates
///   mse          the bias with the least sum of (Q(x) - x)^2; of equal ones the lowest
enum class Calibration : std::uint8_t { amax, percentile, mse };

inline constexpr std::array<std::string_view, 3> calibration_names = {"amax", "percentile", "mse"};
[[nodiscard]] constexpr std::string_view name(Calibration calibration) noexcept {
    return calibration_names[static_cast<std::size_t>(calibration)];
}

struct CalibrationOptions {
    FloatFormat format = e4m3;  ///< of the rounded activations
    Calibration kind = Calibration::amax;
    double percentile = 99.99;  ///< p of Calibration::percentile
};

/// Counts of magnitudes, by exponent and the first 5 bits of the significand.
class MagnitudeHistogram {
public:
    static constexpr int bits = 5;

    void add(float x) noexcept { ++counts_[(std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu) >> shift]; }
    [[nodiscard]] std::uint64_t total() const noexcept {
        std::uint64_t sum = 0;
        for (const std::uint64_t count : counts_) sum += count;
        return sum;
    }
    /// A magnitude that at least `percent` % of all magnitudes do not exceed: the upper end of the percentile's count.
    /// It is at most 2^-5 of itself above the percentile, never below. 0 without magnitudes.
    [[nodiscard]] float percentile(double percent) const noexcept {
        const std::uint64_t all = total();
        if (all == 0) return 0;
        const auto rank = std::max(1.0, std::ceil(percent / 100.0 * static_cast<double>(all)));
        std::uint64_t below = 0;
        for (std::size_t i = 0; i < counts_.size(); ++i) {
            below += counts_[i];
            if (static_cast<double>(below) >= rank)
                return std::bit_cast<float>((static_cast<std::uint32_t>(i + 1) << shift) - 1);
        }
        return std::numeric_limits<float>::max();  // not reached: below ends at `all`
    }

private:
    static constexpr int shift = 23 - bits;
    std::vector<std::uint64_t> counts_ = std::vector<std::uint64_t>(std::size_t{1} << (8 + bits));
};

/// The bias of the activations of a module's linear ops or readouts.
struct ModuleBias {
    ProductKind kind = ProductKind::linear;
    std::string path{};
    int bias = 0;
};

/// Measures x of the products y = x w^T of linear layers and readouts, by module, while a tape runs samples. The recipe
/// must round x, because only then do products show it (`OperandEvent`). What is measured is x before rounding.
/// Calibration::mse needs the samples twice: the errors of `candidates` biases follow the largest magnitude.
/// Errors: a percentile outside (0, 100]; x that is infinite or NaN; no x at all.
/// Test: tests/train/calibrate_test.cpp
template <class T>
class ActivationCalibration : public Observer<T> {
public:
    /// The biases tried by Calibration::mse: from one below the bias of the largest magnitude up.
    static constexpr int candidates = 8, lowest_candidate = -1;

    explicit ActivationCalibration(const CalibrationOptions& options, int threads = 1)
        : options_(options), threads_(threads) {
        check(options.percentile > 0.0 && options.percentile <= 100.0, "calibration: percentile is ",
              options.percentile, "; expected a number above 0, at most 100");
    }

    /// How often the samples must be run.
    [[nodiscard]] int passes() const noexcept { return options_.kind == Calibration::mse ? 2 : 1; }
    /// Ends a run of all samples.
    void end_pass() noexcept { ++pass_; }

    void observe(const TensorEvent<T>&) override {}
    void observe_operand(const OperandEvent<T>& event) override {
        if (event.slot != OperandSlot::forward_x || !reads_coded_weight(event.op)) return;
        Module& module = find(event.op == "readout" ? ProductKind::readout : ProductKind::linear,
                              module_path(std::string(event.path)));
        if (pass_ == 0) return measure(module, *event.tensor);
        OperandEvent<T> tried = event;
        tried.rule = {Quantiser{.format = options_.format}, {}};
        for (int i = 0; i < candidates; ++i) {
            tried.quantiser =
                Quantiser{.format = shifted(options_.format, amax_bias_of(module) + lowest_candidate + i)};
            module.errors[static_cast<std::size_t>(i)] += analysis::tensor_operand_statistics(tried, threads_).error;
        }
    }

    /// The biases, in the order in which the modules first ran.
    [[nodiscard]] std::vector<ModuleBias> biases() const {
        check(!modules_.empty(),
              "calibration: no linear layer has shown activations; expected a recipe that rounds them");
        std::vector<ModuleBias> result;
        for (const Module& module : modules_) {
            check(std::isfinite(module.amax), "calibration: activations of ", module.path, " reach ", module.amax,
                  "; expected finite ones");
            result.push_back({module.kind, module.path, bias(module)});
        }
        return result;
    }

private:
    struct Module {
        ProductKind kind = ProductKind::linear;
        std::string path{};
        float amax = 0;  ///< infinity as soon as x is not finite
        MagnitudeHistogram histogram{};
        std::array<double, candidates> errors{};
    };

    [[nodiscard]] Module& find(ProductKind kind, const std::string& path) {
        for (Module& module : modules_)
            if (module.kind == kind && module.path == path) return module;
        modules_.push_back({.kind = kind, .path = path});
        return modules_.back();
    }
    void measure(Module& module, const Tensor<T>& x) {
        for (const T& element : x.span()) {
            const auto number = static_cast<float>(element);
            if (!std::isfinite(number)) {
                module.amax = std::numeric_limits<float>::infinity();
                continue;
            }
            module.amax = std::max(module.amax, std::abs(number));
            if (options_.kind == Calibration::percentile) module.histogram.add(number);
        }
    }
    [[nodiscard]] int amax_bias_of(const Module& module) const noexcept {
        return amax_bias(options_.format, module.amax, 0);
    }
    [[nodiscard]] int bias(const Module& module) const {
        if (options_.kind == Calibration::percentile)
            return amax_bias(options_.format, std::min(module.histogram.percentile(options_.percentile), module.amax),
                             0);
        if (options_.kind == Calibration::amax) return amax_bias_of(module);
        check(pass_ >= 2, "calibration: mse needs the samples twice; they were run ", pass_, " times");
        const auto least = std::min_element(module.errors.begin(), module.errors.end());
        return amax_bias_of(module) + lowest_candidate + static_cast<int>(least - module.errors.begin());
    }

    CalibrationOptions options_;
    int threads_;
    int pass_ = 0;
    std::vector<Module> modules_{};
};

/// The recipe with a constant bias for x in the forward products of each of these modules, a rule for each.
/// `state`: of a tape that has run the model under the recipe.
/// Error: a module without a product of its kind. Test: tests/train/calibrate_test.cpp
[[nodiscard]] inline Recipe with_constant_biases(Recipe recipe, const std::vector<ModuleBias>& biases,
                                                 const FloatFormat& format, const ScalingState& state) {
    const std::vector<ScalingState::Product> products = state.products();
    for (const ModuleBias& module : biases) {
        const auto found = std::find_if(products.begin(), products.end(), [&](const ScalingState::Product& product) {
            return product.kind == module.kind && reads_coded_weight(state.op(product.site)) &&
                   module_path(state.path(product.site)) == module.path;
        });
        check(found != products.end(), "calibration: module ", module.path, " has no product of kind ",
              name(module.kind));
        ProductRule rule{.kind = module.kind, .pattern = module.path, .formats = found->formats};
        rule.formats.set(OperandSlot::forward_x,
                         {Quantiser{.format = format}, {.source = ScaleSource::constant, .bias = module.bias}});
        recipe.products.push_back(rule);
    }
    check_recipe(recipe);
    return recipe;
}

/// Runs the samples under a recipe that rounds activations, as often as the calibration needs, and returns the recipe
/// with the biases that it found. `run()` runs all samples through the model on `tape`.
/// Errors: those of ActivationCalibration. Test: tests/train/calibrate_test.cpp
template <class T, class Run>
[[nodiscard]] Recipe calibrated_recipe(Tape<T>& tape, const CalibrationOptions& options, int threads, Run&& run) {
    ActivationCalibration<T> calibration(options, threads);
    struct Attached {
        Tape<T>& tape;
        ~Attached() { tape.set_observer(nullptr); }
    } const attached{tape};
    tape.set_observer(&calibration);
    for (int pass = 0; pass < calibration.passes(); ++pass) {
        run();
        calibration.end_pass();
    }
    return with_constant_biases(tape.recipe(), calibration.biases(), options.format, tape.state());
}

}  // namespace unitscale::train
