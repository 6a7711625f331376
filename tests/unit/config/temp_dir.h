// TempDir: a folder that is removed at the end of the test.
#ifndef SLUICE_TESTS_UNIT_CONFIG_TEMP_DIR_H_
#define SLUICE_TESTS_UNIT_CONFIG_TEMP_DIR_H_

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

namespace sluice::config {

class TempDir {
 public:
  TempDir() {
    std::string form = (std::filesystem::temp_directory_path() / "sluice-test-XXXXXX").string();
    path_ = mkdtemp(form.data());
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  std::string Path(std::string_view name) const { return (path_ / name).string(); }

  // Writes in place.
  void Write(std::string_view name, std::string_view text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
  }
  void Rename(std::string_view from, std::string_view to) const {
    std::filesystem::rename(path_ / from, path_ / to);
  }

 private:
  std::filesystem::path path_;
};

}  // namespace sluice::config

#endif  // SLUICE_TESTS_UNIT_CONFIG_TEMP_DIR_H_
