package explain

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/suggest"
	"tarn.dev/tarn/internal/volume"
	"tarn.dev/tarn/provisioners"
)

// classless is about a claim that has no class and does not refuse one.
func (s *story) classless(c *claimView) {
	if s.view.unknown(storageClass, "", "") {
		s.blame("it names no class, and no free volume without a class fits")
		return
	}
	if d := volume.DefaultClass(c.Classes); d != nil {
		s.add(Link{Object: Object{Kind: storageClass, Name: d.Name}, State: "default", Message: severalDefaults(c.Classes, d)})
		s.binderSilent(c, "it is to get the default class "+d.Name, d)
		return
	}
	link := s.add(Link{Object: Object{Kind: storageClass, Name: "(default)"}, State: "missing", Message: "no StorageClass is marked as the default"})
	s.blame("it names no class, there is no default class, and no free volume fits")
	next := "when a StorageClass becomes the default, or a free PersistentVolume without a class fits"
	if usable := s.usableClass(c); usable != "" {
		link.Next = next
		link.offer = "the command gives the claim class " + usable
		link.Command = kubectl(c.Object.Namespace, "patch", "pvc", c.Object.Name, "-p", fmt.Sprintf(`{"spec":{"storageClassName":%q}}`, usable))
	}
	s.nearest(c, next)
}

// severalDefaults says which class is the default where several are marked as default.
func severalDefaults(classes []*storagev1.StorageClass, used *storagev1.StorageClass) string {
	marked := slices.DeleteFunc(slices.Clone(classes), func(class *storagev1.StorageClass) bool { return !volume.IsDefault(class) })
	if len(marked) < 2 {
		return ""
	}
	return fmt.Sprintf("%d StorageClasses are marked as the default; the newest, %s, is used; of several that are as new it is the first by name", len(marked), used.Name)
}

// likeClass returns the existing class with the most similar name; empty for none.
func (c *claimView) likeClass(name string) string {
	var names []string
	for _, class := range c.Classes {
		names = append(names, class.Name)
	}
	if like := suggest.Near(name, names); len(like) > 0 {
		return like[0]
	}
	return ""
}

// usableClass returns the class to propose for a claim without one. It is the default, else the
// first of an accepted PavProvisioner, else the only class; empty for none.
func (s *story) usableClass(c *claimView) string {
	if d := volume.DefaultClass(c.Classes); d != nil {
		return d.Name
	}
	making := slices.DeleteFunc(slices.Clone(c.Classes), func(class *storagev1.StorageClass) bool {
		return !slices.ContainsFunc(c.Provisioners, func(p pavv1.PavProvisioner) bool {
			return p.Name == class.Provisioner && meta.IsStatusConditionTrue(p.Status.Conditions, pavv1.ConditionAccepted)
		})
	})
	if len(making) == 0 && len(c.Classes) == 1 {
		making = c.Classes
	}
	if len(making) == 0 {
		return ""
	}
	return slices.MinFunc(making, func(a, b *storagev1.StorageClass) int { return strings.Compare(a.Name, b.Name) }).Name
}

// classMissing is about a claim whose class does not exist. Volumes written by hand need no class
// object. If such a volume has this class, the claim probably waits for one, so no other class is
// offered.
func (s *story) classMissing(c *claimView, class string) {
	if s.view.unknown(storageClass, "", "") {
		return
	}
	link := s.add(Link{Object: Object{Kind: storageClass, Name: class}, State: "missing", Next: "when StorageClass " + class + " is created"})
	if slices.Contains(provisioners.Names(), class) {
		link.Command, link.offer = "tarn provisioner install "+class, "the command installs this ready class with its provisioner"
		s.blame("StorageClass %q does not exist", class)
		return
	}
	if c.Claim.Labels[tarnv1.LabelRecord] != "" { // the class above names it, and Tarn makes the claim
		link.Next += ", or the class of the volume above is created again with another class below"
		s.blame("StorageClass %q does not exist", class)
		return
	}
	like := c.likeClass(class)
	if slices.ContainsFunc(c.Candidates, func(vol corev1.PersistentVolume) bool {
		return volume.ClassOfVolume(&vol) == class || volume.BoundTo(&vol, c.Claim) || misnamed(&vol, c.Claim) != ""
	}) {
		link.Message = "volumes written by hand need no StorageClass object"
		if like != "" {
			link.Message += "; there is StorageClass " + like
		}
		s.blame("StorageClass %q does not exist, so no volume is made, and no free one of that class fits", class)
		s.nearest(c, "when a free PersistentVolume of class "+class+" fits, or StorageClass "+class+" is created")
		return
	}
	s.blame("StorageClass %q does not exist", class)
	usable := like
	if usable == "" && !s.view.unknown(Volume, "", "") {
		usable = s.usableClass(c)
	}
	if usable != "" {
		s.anew(c, link, "merge", fmt.Sprintf(`{"spec":{"storageClassName":%q}}`, usable), "with class "+usable)
		return
	}
	s.nearest(c, link.Next)
}
