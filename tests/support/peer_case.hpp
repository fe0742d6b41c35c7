// SPDX-License-Identifier: MIT
#pragma once

#include "support/catch.hpp"

#include <unitscale/analysis/grad_check.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/io/safetensors.hpp>
#include <unitscale/nn/module.hpp>

#include <cmath>
#include <map>
#include <string>
#include <utility>

namespace unitscale::test {

/// A case of a file of tests/data: values and gradients that another implementation computed in double. Case NAME has
/// the tensors NAME.x, NAME.<parameter>, NAME.y, NAME.dy (the output's gradient), NAME.dx and NAME.d<parameter>.
class PeerCase {
public:
    PeerCase(const std::string& file, std::string name, const Recipe& recipe = analysis::plain_recipe(Scaling::none))
        : name_(std::move(name)),
          file_(std::string(UNITSCALE_TEST_DATA) + "/" + file + ".safetensors"),
          recipe_(recipe_in<double>(recipe)) {
        tape_.begin_step();
    }
    [[nodiscard]] Tensor<double> read(const std::string& what) const {
        return file_.read_as<double>(name_ + "." + what);
    }
    [[nodiscard]] Variable<double> input(const std::string& what) { return tape_.input(read(what), true); }
    [[nodiscard]] Tape<double>& tape() { return tape_; }

    /// Gives parameters the file's values: `names` maps our names to the file's.
    template <class Module>
    void load(Module& module, const std::map<std::string, std::string>& names) {
        for (Parameter<double>* parameter : nn::parameters_of<double>(module)) {
            const auto found = names.find(parameter->name());
            if (found == names.end()) continue;
            const Tensor<double> value = read(found->second);
            REQUIRE(value.shape() == parameter->shape());
            parameter->write() = value;
            loaded_[found->second] = parameter;
        }
        REQUIRE(loaded_.size() == names.size());
    }

    /// Checks the value, runs backward with the file's output gradient, and checks all gradients.
    void check(const Variable<double>& y, const std::map<std::string, Variable<double>>& inputs) {
        check_equal(y.value(), "y");
        tape_.backward(analysis::project(y, read("dy")));
        check_gradients(inputs);
    }
    /// Checks the gradients of inputs and of loaded parameters.
    void check_gradients(const std::map<std::string, Variable<double>>& inputs) const {
        for (const auto& [what, input] : inputs) check_equal(input.gradient(), what);
        for (const auto& [what, parameter] : loaded_) check_equal(parameter->gradient(), "d" + what);
    }
    void check_equal(const Tensor<double>& ours, const std::string& what) const {
        INFO(name_ << '.' << what);
        const Tensor<double> theirs = read(what);
        REQUIRE(ours.shape() == theirs.shape());
        if (what.ends_with("key.bias")) {  // no softmax sees it: the gradient is rounding's
            for (const Tensor<double>* gradient : {&ours, &theirs})
                for (const double element : gradient->span()) CHECK(std::abs(element) < 1e-13);
            return;
        }
        CHECK(analysis::relative_error(ours, theirs) < 1e-12);
    }

private:
    std::string name_;
    io::SafetensorsReader file_;
    Recipe recipe_;
    ScalingState state_{1};
    Tape<double> tape_{recipe_, state_};
    std::map<std::string, Parameter<double>*> loaded_{};
};

}  // namespace unitscale::test
