package explain

import (
	"math"
	"strings"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"
)

func TestAPodWithoutANodeIsToldThatItsClaimHasRoomNowhere(t *testing.T) {
	w := newWorld()
	w.class.VolumeBindingMode, w.claim.Annotations = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer), nil
	w.askedPod(unscheduled)
	w.claimView.Users = []user{{Pod: w.pod}}
	w.claimView.Free = []freeOn{{"n1", 5 << 20}}
	if e := chain(w.view); !strings.Contains(e.Verdict, "no node has the 1Gi free that it asks for: class gold has 5Mi on node n1") {
		t.Errorf("the verdict is %q", e.Verdict)
	}
	w.claimView.Free = []freeOn{{"n1", math.MaxInt64}}
	if e := chain(w.view); !strings.Contains(e.Verdict, "0/1 nodes fit") {
		t.Errorf("with room, the verdict is %q", e.Verdict)
	}
}

func TestASizeIsRoundedDownToATenth(t *testing.T) {
	for bytes, want := range map[int64]string{
		0: "0", 1023: "1023", 1024: "1Ki", 1535: "1.4Ki", 1 << 20: "1Mi", 5<<30 - 1: "4.9Gi", 3 << 50: "3Pi", math.MaxInt64: "8191.9Pi",
	} {
		if got := rounded(bytes); got != want {
			t.Errorf("%d bytes are %s, want %s", bytes, got, want)
		}
	}
}
