// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/safetensors.hpp>
#include <unitscale/tensor/tensor.hpp>
#include <unitscale/tensor/view.hpp>
#include <unitscale/train/published_names.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// The weights of GPT-2 and Llama as parameters of nn::Decoder, and the weights of BERT as parameters of nn::Bert. The
// Python package transformers defines their names.
namespace unitscale::train {

/// A model's sizes from the shapes in a file.
struct PublishedSizes {
    std::size_t vocabulary = 0, positions = 0, width = 0, hidden = 0;
    std::size_t queries = 0;  ///< columns of a layer's queries: heads times head size
    std::size_t keys = 0;     ///< columns of a layer's keys: groups times head size
    std::size_t blocks = 0;
    std::size_t segments = 0;  ///< BERT's
    bool bias = false;         ///< linear layers have biases
    bool input_bias = false;   ///< queries, keys and values have biases
    bool readout = false;      ///< the file has a readout beside the token table
};

/// The weights of a GPT-2, Llama or BERT model in a published file. The reader is borrowed.
/// BERT's heads (pooler, masked tokens, next sentence, spans) differ between files. A head that only the file has is
/// left out, and a head that only the model has keeps its values: `head_notes` names both. Older files of BERT call a
/// norm's weight and bias gamma and beta.
/// Errors begin with `where` or are the reader's; each names the tensor. Test: tests/train/published_weights_test.cpp
class PublishedWeights {
public:
    /// The weights in `file`. Empty: the file has no token table of a family.
    /// Error: the file has several token tables:
    ///   checkpoint: model.safetensors: holds both 'wte.weight' and 'transformer.wte.weight'
    [[nodiscard]] static std::optional<PublishedWeights> find(const io::SafetensorsReader& file,
                                                              std::string_view where) {
        std::optional<PublishedWeights> found;
        for (const PublishedFamily family : {PublishedFamily::gpt2, PublishedFamily::llama, PublishedFamily::bert})
            for (const std::string_view prefix : {std::string_view(), published_prefix(family)}) {
                const PublishedWeights weights(file, where, family, prefix);
                const std::string table = weights.tensor_name(weights.names()[0], "");
                if (!file.contains(table)) continue;
                if (found)
                    fail(where, ": holds both '", found->tensor_name(found->names()[0], ""), "' and '", table,
                         "'; expected the weights of one model");
                found = weights;
            }
        return found;
    }

    [[nodiscard]] PublishedFamily family() const noexcept { return family_; }
    [[nodiscard]] std::span<const PublishedName> names() const noexcept { return published_names(family_); }

    /// The model's sizes, from shapes that must agree with each other.
    /// The described model is therefore not larger than the tensors of the file.
    /// Errors: a tensor that is missing, of another shape or not floating-point; a tensor that belongs to no parameter;
    /// extents of 0.
    [[nodiscard]] PublishedSizes sizes() const {
        PublishedSizes sizes;
        for (const auto& [tensor, entry] : file_->tensors()) {
            const PublishedName* const row = find_row(tensor);
            if (row == nullptr && !is_constant(tensor) && !original_of(tensor)) refuse(tensor);
            if (row == nullptr) continue;
            sizes.bias = sizes.bias || row->bias == PublishedBias::other || family_ != PublishedFamily::llama;
            sizes.input_bias = sizes.input_bias || sizes.bias || row->bias == PublishedBias::input;
            sizes.readout = sizes.readout || tensor == published_readout;
            const std::string name = newer_name(tensor);
            const std::string_view number = *match_numbered(with_prefix(row->tensor), name);
            if (number.empty()) continue;
            const auto block = static_cast<std::size_t>(std::stoul(std::string(number)));
            if (block >= file_->tensors().size())
                fail(where_, ": tensor ", io::quoted_text(tensor), " is of block ", block, ", but the file has ",
                     file_->tensors().size(), " tensors in all");
            sizes.blocks = std::max(sizes.blocks, block + 1);
        }
        std::map<char, std::size_t> extents{{'N', 2}};
        for (const PublishedName& row : names()) {
            if (row.bias == PublishedBias::input && !sizes.input_bias) continue;
            if (row.bias == PublishedBias::other && !sizes.bias) continue;
            if (row.tensor == published_readout && !sizes.readout) continue;
            if (row.is_head && !file_->contains(tensor_name(row, ""))) continue;
            const bool once = row.tensor.find('*') == std::string_view::npos;
            const std::size_t count = once ? 1 : std::max(sizes.blocks, std::size_t{1});
            for (std::size_t block = 0; block < count; ++block) match_shape(row, std::to_string(block), extents);
        }
        sizes.vocabulary = extents['V'], sizes.positions = extents['P'], sizes.width = extents['W'];
        const bool llama = family_ == PublishedFamily::llama;
        sizes.hidden = extents['H'], sizes.queries = llama ? extents['Q'] : sizes.width;
        sizes.keys = llama ? extents['K'] : sizes.width;
        sizes.segments = extents['S'];
        return sizes;
    }

    /// Error: a tensor of the file that belongs to none of these parameters.
    /// Published constants and heads are no error.
    /// For a model without a readout weight, the file's readout weight must equal the token table, bit for bit. So must
    /// the two copies in BERT's files.
    /// Returns `head_notes`.
    std::vector<std::string> check_all_used(std::span<const std::string> parameters) const {
        std::set<std::string> used;
        for (const std::string& parameter : parameters)
            if (const auto place = find_place(parameter)) used.insert(place->tensor);
        for (const auto& [tensor, entry] : file_->tensors()) {
            if (used.contains(tensor) || is_constant(tensor)) continue;
            if (const PublishedName* const row = find_row(tensor); row != nullptr && row->is_head) continue;
            const std::optional<std::string> original = original_of(tensor);
            if (!original) refuse(tensor);
            const io::SafetensorsEntry& tied = file_->entry(*original);
            const auto equal = [&, &name = tensor] {  // Clang with OpenMP captures no structured binding itself
                const std::span<const std::byte> bytes = file_->view(name), expected = file_->view(*original);
                return std::equal(bytes.begin(), bytes.end(), expected.begin(), expected.end());
            };
            if (entry.dtype != tied.dtype || entry.shape != tied.shape || !equal())
                fail(where_, ": '", tensor, "' is not '", *original, "', which is the readout of this model too");
        }
        return head_notes(parameters);
    }

    /// False: the parameter belongs to a head that the file lacks.
    [[nodiscard]] bool holds(std::string_view parameter) const {
        const std::optional<Place> place = find_place(parameter);
        return !place || !place->row->is_head || file_->contains(place->tensor);
    }
    /// A line for the heads' tensors that the file lacks, and one for the tensors of heads that these parameters lack.
    [[nodiscard]] std::vector<std::string> head_notes(std::span<const std::string> parameters) const {
        std::string absent, left;
        for (const PublishedName& row : names()) {
            if (!row.is_head) continue;
            const std::string tensor = tensor_name(row, "");
            const bool in_file = file_->contains(tensor),
                       in_model = std::find(parameters.begin(), parameters.end(), row.parameter) != parameters.end();
            if (in_model && !in_file) absent += " '" + tensor + "'";
            if (in_file && !in_model) left += " '" + tensor + "'";
        }
        std::vector<std::string> notes;
        if (!absent.empty()) notes.push_back(": has no" + absent + ": these heads keep their values");
        if (!left.empty()) notes.push_back(": this model has no heads for" + left);
        return notes;
    }

    /// The tensor that holds the parameter. Error: the family has no such parameter, or the file no such tensor.
    [[nodiscard]] const io::SafetensorsEntry& entry(const std::string& parameter) const {
        return file_->entry(place_of(parameter).tensor);
    }
    /// The errors of `read` that no element causes.
    template <std::floating_point Float>
    void check_readable(const std::string& parameter, const Shape& shape) const {
        const auto& [tensor, row] = place_of(parameter);
        file_->check_readable<Float>(tensor, stored_shape(*row, shape));
    }
    /// The values of the parameter with this name and shape, in the parameter's layout.
    /// Errors: the family has no such parameter; the errors of SafetensorsReader::read_as.
    template <std::floating_point Float>
    [[nodiscard]] Tensor<Float> read(const std::string& parameter, const Shape& shape) const {
        const auto& [tensor, row] = place_of(parameter);
        const Shape stored = stored_shape(*row, shape);
        Tensor<Float> values = file_->read_as<Float>(tensor, stored);
        if (!row->transposed && row->parts == 1) return values;
        const TensorView<const Float> whole(values);
        const auto extent = static_cast<std::ptrdiff_t>(shape[0]),
                   first = static_cast<std::ptrdiff_t>(row->part) * extent;
        return copy_of((row->transposed ? whole.transpose() : whole).slice({{first, first + extent}}));
    }

private:
    static constexpr std::array<std::array<std::string_view, 2>, 2> older_endings{
        {{"LayerNorm.gamma", "LayerNorm.weight"}, {"LayerNorm.beta", "LayerNorm.bias"}}};
    struct Place {
        std::string tensor;
        const PublishedName* row;
    };

    PublishedWeights(const io::SafetensorsReader& file, std::string_view where, PublishedFamily family,
                     std::string_view prefix)
        : file_(&file), where_(where), family_(family), prefix_(prefix) {}

    /// Adds the prefix, which every tensor but those of readouts and heads has in front.
    [[nodiscard]] std::string with_prefix(std::string_view tensor) const {
        const bool outside =
            tensor == published_readout || tensor.starts_with("cls.") || tensor.starts_with("qa_outputs.");
        return outside ? std::string(tensor) : prefix_ + std::string(tensor);
    }
    /// The name in this file: norms may have their older names.
    [[nodiscard]] std::string tensor_name(const PublishedName& row, std::string_view number) const {
        const std::string name = fill_number(with_prefix(row.tensor), number);
        for (const auto& [older, newer] : older_endings)
            if (name.ends_with(newer) && !file_->contains(name)) {
                const std::string other = name.substr(0, name.size() - newer.size()) + std::string(older);
                if (file_->contains(other)) return other;
            }
        return name;
    }
    [[nodiscard]] static std::string newer_name(std::string_view tensor) {
        for (const auto& [older, newer] : older_endings)
            if (tensor.ends_with(older))
                return std::string(tensor.substr(0, tensor.size() - older.size())) + std::string(newer);
        return std::string(tensor);
    }
    /// The tensor that this one repeats, where the readout is the token table. Empty: it repeats none.
    [[nodiscard]] std::optional<std::string> original_of(std::string_view tensor) const {
        const bool bert = family_ == PublishedFamily::bert;
        if (tensor == (bert ? "cls.predictions.decoder.weight" : published_readout)) return tensor_name(names()[0], "");
        if (bert && tensor == "cls.predictions.decoder.bias") return "cls.predictions.bias";
        return std::nullopt;
    }
    [[nodiscard]] std::optional<Place> find_place(std::string_view parameter) const {
        for (const PublishedName& row : names())
            if (const auto number = match_numbered(row.parameter, parameter))
                return Place{tensor_name(row, *number), &row};
        return std::nullopt;
    }
    [[nodiscard]] Place place_of(std::string_view parameter) const {
        std::optional<Place> place = find_place(parameter);
        if (!place)
            fail(where_, ": holds ", published_family_names[static_cast<std::size_t>(family_)],
                 " weights, which have no '", parameter, "'");
        return *std::move(place);
    }
    /// The shape of the tensor that holds a parameter of shape `shape`.
    [[nodiscard]] static Shape stored_shape(const PublishedName& row, Shape shape) {
        if (row.transposed) std::reverse(shape.begin(), shape.end());
        shape.back() *= row.parts;
        return shape;
    }
    [[nodiscard]] const PublishedName* find_row(std::string_view tensor) const {
        const std::string name = newer_name(tensor);
        for (const PublishedName& row : names())
            if (match_numbered(with_prefix(row.tensor), name)) return &row;
        return nullptr;
    }
    [[nodiscard]] bool is_constant(std::string_view tensor) const {
        return std::any_of(published_constants.begin(), published_constants.end(), [&](std::string_view constant) {
            return match_numbered(with_prefix(constant), tensor).has_value();
        });
    }
    [[noreturn]] void refuse(std::string_view tensor) const {
        fail(where_, ": tensor ", io::quoted_text(tensor), " belongs to no parameter of this model");
    }

    static constexpr bool is_extent(char symbol) noexcept { return symbol < '0' || symbol > '9'; }
    /// Takes extents that are not known yet from the tensor's shape, and compares the known extents.
    void match_shape(const PublishedName& row, std::string_view block, std::map<char, std::size_t>& extents) const {
        const std::string tensor = tensor_name(row, block);
        const io::SafetensorsEntry& entry = file_->entry(tensor);
        const std::string name = io::quoted_text(tensor);
        if (entry.format.empty() && entry.dtype != "F32" && entry.dtype != "F64")
            fail(where_, ": tensor ", name, " is of type ", io::quoted_text(entry.dtype),
                 "; expected a floating-point type");
        const auto rank = static_cast<std::size_t>(std::count_if(row.shape.begin(), row.shape.end(), is_extent));
        if (entry.shape.size() != rank)
            fail(where_, ": tensor ", name, " is ", io::cut_shape(entry.shape), "; expected rank ", rank);
        Shape expected;
        std::size_t factor = 1;
        for (const char symbol : row.shape) {
            if (!is_extent(symbol)) {
                factor = static_cast<std::size_t>(symbol - '0');
                continue;
            }
            const std::size_t axis = expected.size();
            if (!extents.contains(symbol)) {
                if (entry.shape[axis] == 0)
                    fail(where_, ": tensor ", name, " of shape ", io::cut_shape(entry.shape), " is empty");
                extents[symbol] = entry.shape[axis];
            }
            expected.push_back(factor * extents[symbol]);
            factor = 1;
        }
        if (expected != entry.shape)
            fail(where_, ": tensor ", name, " is ", io::cut_shape(entry.shape), "; expected ", to_string(expected));
    }

    const io::SafetensorsReader* file_;
    std::string where_;
    PublishedFamily family_;
    std::string prefix_;
};

}  // namespace unitscale::train
