package service

import (
	"testing"

	appplan "tarn.dev/tarn/internal/app/plan"
	"tarn.dev/tarn/internal/kubelet"
)

func TestHowFullAVolumeIsIsNotToldOfAFileSystemItShares(t *testing.T) {
	const gi = 1 << 30
	volumes := []appplan.Volume{
		{ClaimName: "own", CapacityBytes: gi}, {ClaimName: "shared", CapacityBytes: gi}, {ClaimName: "unknown", CapacityBytes: gi}, {ClaimName: "pending"},
	}
	tellUsed(volumes, map[string]kubelet.Usage{"own": {Used: 7, Size: gi - 1}, "shared": {Used: 7, Size: 100 * gi}, "pending": {Used: 7, Size: gi}})
	for i, want := range []bool{true, false, false, false} {
		if v := volumes[i]; (v.UsedBytes != nil) != want || want && *v.UsedBytes != 7 {
			t.Errorf("of %s %v bytes are in use, want that it is known: %t", v.ClaimName, v.UsedBytes, want)
		}
	}
}
