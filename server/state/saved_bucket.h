// The bytes of parameters and of buckets in a state file.
//
// If their fields change, raise kStateVersion (state_file.h).
#ifndef SLUICE_SERVER_STATE_SAVED_BUCKET_H_
#define SLUICE_SERVER_STATE_SAVED_BUCKET_H_

#include "server/algorithm/bucket_image.h"
#include "server/algorithm/parameters.h"
#include "server/state/fields.h"

namespace sluice::state {

// With the numbers that were derived from them, which the bucket's state was computed by.
void WriteParameters(const algorithm::Parameters& parameters, FieldWriter* to);
// Fails the reader if no limit can have them.
algorithm::Parameters ReadParameters(FieldReader* from);

void WriteImage(const algorithm::BucketImage& image, FieldWriter* to);
// Fails the reader if no bucket can be made of it.
algorithm::BucketImage ReadImage(FieldReader* from);

}  // namespace sluice::state

#endif  // SLUICE_SERVER_STATE_SAVED_BUCKET_H_
