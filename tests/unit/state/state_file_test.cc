#include "server/state/state_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/config/temp_dir.h"

namespace sluice::state {
namespace {

using ::testing::HasSubstr;

class StateFileTest : public ::testing::Test {
 protected:
  // Writes records of these texts.
  void Write(const std::vector<std::string>& texts) {
    auto file = StateFileWriter::Create(path_, nullptr);
    ASSERT_TRUE(file.ok()) << file.status();
    for (const std::string& text : texts) {
      std::string fields;
      FieldWriter(&fields).Text(text);
      (*file)->Add(RecordKind::kLimitName, fields);
      ASSERT_TRUE((*file)->WriteIfLarge().ok());
    }
    const absl::Status finished = (*file)->Finish();
    ASSERT_TRUE(finished.ok()) << finished;
    EXPECT_EQ((*file)->bytes(), Bytes().size());
  }
  absl::Status Read(std::vector<std::string>* texts) const {
    texts->clear();
    return ReadStateFile(path_, [&](RecordKind kind, FieldReader* from) {
      if (kind == RecordKind::kLimitName) texts->emplace_back(from->Text());
      return absl::OkStatus();
    });
  }
  absl::Status Read() const {
    std::vector<std::string> ignored;
    return Read(&ignored);
  }
  std::string Bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void SetBytes(const std::string& bytes) const { folder_.Write("state", bytes); }

  config::TempDir folder_;
  const std::string path_ = folder_.Path("state");
};

TEST_F(StateFileTest, ReadsWhatWasWritten) {
  const std::vector<std::string> texts = {"", "a", std::string(1'000'000, 'x'), "last"};
  Write(texts);
  std::vector<std::string> read;
  ASSERT_TRUE(Read(&read).ok()) << Read();
  EXPECT_EQ(read, texts);
}

TEST_F(StateFileTest, ReadsManyBlocks) {
  std::vector<std::string> texts(100'000);
  for (size_t i = 0; i < texts.size(); ++i) texts[i] = "name " + std::to_string(i);
  Write(texts);
  std::vector<std::string> read;
  ASSERT_TRUE(Read(&read).ok()) << Read();
  EXPECT_EQ(read, texts);
}

TEST_F(StateFileTest, RefusesAFileThatIsTornAtAnyByte) {
  Write({"one", "two", "three"});
  const std::string whole = Bytes();
  for (size_t size = 0; size < whole.size(); ++size) {
    SetBytes(whole.substr(0, size));
    const absl::Status status = Read();
    EXPECT_TRUE(absl::IsDataLoss(status)) << size << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
  }
  SetBytes(whole);
  EXPECT_TRUE(Read().ok());
}

TEST_F(StateFileTest, RefusesAnyChangedBit) {
  Write({"one", "two", "three"});
  const std::string whole = Bytes();
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string changed = whole;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
    SetBytes(changed);
    EXPECT_FALSE(Read().ok()) << bit;
  }
}

TEST_F(StateFileTest, RefusesMoreBehindTheEnd) {
  Write({"one"});
  SetBytes(Bytes() + "x");
  EXPECT_THAT(std::string(Read().message()), HasSubstr("more follows behind its end"));
}

TEST_F(StateFileTest, RefusesABlockThatIsMissing) {
  std::vector<std::string> texts(2, std::string(300'000, 'x'));
  Write(texts);
  // The preamble, the first block, the second block, the end.
  const std::string whole = Bytes();
  const size_t block = 8 + 3 + 1 + 3 + 300'000;
  SetBytes(whole.substr(0, 16) + whole.substr(16 + block));
  EXPECT_THAT(std::string(Read().message()), HasSubstr("its end is wrong"));
}

TEST_F(StateFileTest, SaysWhetherItIsNewerOrForeign) {
  SetBytes("limits: [{name: api, rate: 5/s}]\n");
  EXPECT_TRUE(absl::IsInvalidArgument(Read())) << Read();
  EXPECT_THAT(std::string(Read().message()), HasSubstr("not a state file of Sluice"));
  // Version 3, with its checksum (CRC-32 of "SLUICEST\3\0\0\0").
  SetBytes(std::string("SLUICEST\x03\0\0\0", 12) + std::string("\x87\x1e\x73\x25", 4));
  EXPECT_TRUE(absl::IsUnimplemented(Read())) << Read();
  EXPECT_THAT(std::string(Read().message()),
              HasSubstr("has version 3 of the format; this server reads versions up to 2"));
  EXPECT_TRUE(absl::IsNotFound(ReadStateFile(
      folder_.Path("none"), [](RecordKind, FieldReader*) { return absl::OkStatus(); })));
}

TEST_F(StateFileTest, RefusesFieldsThatAreLeftUnread) {
  Write({"one"});
  const absl::Status status =
      ReadStateFile(path_, [](RecordKind, FieldReader*) { return absl::OkStatus(); });
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot be read"));
}

}  // namespace
}  // namespace sluice::state
